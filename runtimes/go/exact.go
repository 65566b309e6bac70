package operator

// Numbers of a state, read exactly or not at all: the MessagePack library truncates an integer that its variable does not hold.

import (
	"encoding"
	"fmt"
	"math"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// readsItself are the interfaces by which a type defines how it is read.
var readsItself = []reflect.Type{
	reflect.TypeFor[msgpack.CustomDecoder](), reflect.TypeFor[msgpack.Unmarshaler](),
	reflect.TypeFor[encoding.BinaryUnmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
}

// readExactly registers how values of a type of numbers are read; the library looks for this before it goes by the kind of the type.
func readExactly(t reflect.Type) {
	for _, own := range readsItself {
		if reflect.PointerTo(t).Implements(own) {
			return
		}
	}
	some := reflect.Zero(t).Interface()
	switch {
	case reflect.Zero(t).CanInt():
		msgpack.Register(some, nil, decodeInt)
	case reflect.Zero(t).CanUint():
		msgpack.Register(some, nil, decodeUint)
	case reflect.Zero(t).CanFloat():
		msgpack.Register(some, nil, decodeFloat)
	}
}

// whole is an integer of MessagePack: from -2^63 to 2^64 - 1.
type whole struct {
	bits     uint64
	negative bool
}

func (w whole) String() string {
	if w.negative {
		return fmt.Sprint(int64(w.bits))
	}
	return fmt.Sprint(w.bits)
}

func notOf(number any, v reflect.Value) error {
	return fmt.Errorf("%v is not one of the numbers of the type %s", number, v.Type())
}

// decodeWhole reads an integer, or null as 0.
func decodeWhole(d *msgpack.Decoder) (whole, error) {
	code, err := d.PeekCode()
	if err != nil {
		return whole{}, err
	}
	n, err := d.DecodeUint64()
	return whole{n, int64(n) < 0 && code != msgpcode.Uint64}, err
}

func decodeInt(d *msgpack.Decoder, v reflect.Value) error {
	w, err := decodeWhole(d)
	if err != nil {
		return err
	}
	n := int64(w.bits)
	if n < 0 != w.negative || v.OverflowInt(n) {
		return notOf(w, v)
	}
	v.SetInt(n)
	return nil
}

func decodeUint(d *msgpack.Decoder, v reflect.Value) error {
	w, err := decodeWhole(d)
	if err != nil {
		return err
	}
	if w.negative || v.OverflowUint(w.bits) {
		return notOf(w, v)
	}
	v.SetUint(w.bits)
	return nil
}

// decodeFloat reads a float, or an integer up to 2^53, or 2^24: floats of that size hold all of these exactly.
func decodeFloat(d *msgpack.Decoder, v reflect.Value) error {
	code, err := d.PeekCode()
	if err != nil {
		return err
	}
	if code == msgpcode.Float || code == msgpcode.Double {
		f, err := d.DecodeFloat64()
		if err != nil {
			return err
		}
		if v.Kind() == reflect.Float32 && !math.IsNaN(f) && f != float64(float32(f)) {
			return notOf(f, v)
		}
		v.SetFloat(f)
		return nil
	}
	w, err := decodeWhole(d)
	if err != nil {
		return err
	}
	n, most := int64(w.bits), int64(1)<<53
	if v.Kind() == reflect.Float32 {
		most = 1 << 24
	}
	if n < 0 != w.negative || n > most || n < -most {
		return notOf(w, v)
	}
	v.SetFloat(float64(n))
	return nil
}

package operator

// States and keys as MessagePack, in the profile of docs/operator-protocol.md.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/scalar"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Decimal is a decimal number as its digits: "12.50".
type Decimal string

// LocalTime is a time without a zone: what its clock shows, whichever zone the time.Time is in.
type LocalTime struct{ time.Time }

// Date is a day: the one that its clock shows.
type Date struct{ time.Time }

// wall returns what the clock shows as a time in UTC.
func (t LocalTime) wall() time.Time {
	_, offset := t.Zone()
	return t.Add(time.Duration(offset) * time.Second).UTC()
}

// days returns the number of days since 1970-01-01.
func (d Date) days() int64 {
	year, month, day := d.Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / 86400
}

func dateOf(days int64) Date { return Date{time.Unix(days*86400, 0).UTC()} }

// The day number of 1970-01-01 in the profile, which counts from 1 for 0001-01-01.
const epochDay = 719163

func init() {
	extension(-1, nil, zonedOf)
	extension(1, func(t LocalTime) ([]byte, error) {
		return binary.BigEndian.AppendUint64(nil, uint64(t.wall().UnixMicro())), nil
	}, localOf)
	extension(2, func(d Date) ([]byte, error) {
		return binary.BigEndian.AppendUint32(nil, uint32(d.days()+epochDay)), nil
	}, dayOf)
	extension(3, func(d Decimal) ([]byte, error) { return []byte(d), nil }, func(data []byte) (Decimal, error) { return Decimal(data), nil })
	msgpack.Register(Nested{}, func(e *msgpack.Encoder, v reflect.Value) error {
		value := v.Interface().(Nested).Go()
		if other, same := value.(Nested); same {
			return notStored(e, reflect.ValueOf(other.Array))
		}
		return e.Encode(value)
	}, nil)
	for _, other := range []scalar.Scalar{
		(*scalar.Date64)(nil), (*scalar.Time32)(nil), (*scalar.Time64)(nil), (*scalar.Timestamp)(nil), (*scalar.Duration)(nil),
		(*scalar.Float16)(nil), (*scalar.Decimal128)(nil), (*scalar.Decimal256)(nil),
		(*scalar.MonthInterval)(nil), (*scalar.DayTimeInterval)(nil), (*scalar.MonthDayNanoInterval)(nil), (*scalar.Dictionary)(nil),
		(*scalar.Extension)(nil), (*scalar.List)(nil), (*scalar.Map)(nil), (*scalar.Struct)(nil), (*scalar.String)(nil),
	} {
		msgpack.Register(other, notStored, nil)
	}
}

func notStored(_ *msgpack.Encoder, v reflect.Value) error {
	const expected = "numbers, text, bytes, booleans, times, dates, decimals, or lists and maps of these"
	return fmt.Errorf("a state cannot hold a %T: expected %s", v.Interface(), expected)
}

// extension registers a type that MessagePack itself does not have. Null is read as its zero value, as it is for other types.
func extension[T any](id int8, write func(T) ([]byte, error), read func([]byte) (T, error)) {
	var none T
	if write != nil {
		msgpack.RegisterExtEncoder(id, none, func(_ *msgpack.Encoder, v reflect.Value) ([]byte, error) { return write(v.Interface().(T)) })
	}
	decode := func(d *msgpack.Decoder, v reflect.Value, size int) error {
		data := make([]byte, size)
		if err := d.ReadFull(data); err != nil {
			return err
		}
		value, err := read(data)
		if err == nil {
			v.Set(reflect.ValueOf(value))
		}
		return err
	}
	msgpack.RegisterExtDecoder(id, none, decode)
	msgpack.Register(none, nil, func(d *msgpack.Decoder, v reflect.Value) error {
		if code, err := d.PeekCode(); err != nil || code == msgpcode.Nil {
			v.SetZero()
			return d.DecodeNil()
		}
		got, size, err := d.DecodeExtHeader()
		if err == nil && got != id {
			err = fmt.Errorf("expected %T, which is extension %d of MessagePack, got extension %d", none, id, got)
		}
		if err != nil {
			return err
		}
		return decode(d, v, size)
	})
}

// zonedOf reads a time with a zone, in UTC.
func zonedOf(data []byte) (time.Time, error) {
	switch len(data) {
	case 4:
		return time.Unix(int64(binary.BigEndian.Uint32(data)), 0).UTC(), nil
	case 8:
		both := binary.BigEndian.Uint64(data)
		return time.Unix(int64(both&(1<<34-1)), int64(both>>34)).UTC(), nil
	case 12:
		return time.Unix(int64(binary.BigEndian.Uint64(data[4:])), int64(binary.BigEndian.Uint32(data))).UTC(), nil
	}
	return time.Time{}, fmt.Errorf("a time with a zone has 4, 8 or 12 bytes, got %d", len(data))
}

func localOf(data []byte) (LocalTime, error) {
	if len(data) != 8 {
		return LocalTime{}, fmt.Errorf("a time without a zone has 8 bytes, got %d", len(data))
	}
	return LocalTime{time.UnixMicro(int64(binary.BigEndian.Uint64(data))).UTC()}, nil
}

func dayOf(data []byte) (Date, error) {
	if len(data) != 4 {
		return Date{}, fmt.Errorf("a date has 4 bytes, got %d", len(data))
	}
	return dateOf(int64(binary.BigEndian.Uint32(data)) - epochDay), nil
}

// pack returns the state with its maps in the order of their keys, or an error if it could not be read again everywhere.
func pack(value any) ([]byte, error) {
	var data bytes.Buffer
	e := msgpack.GetEncoder()
	defer msgpack.PutEncoder(e)
	e.Reset(&data)
	e.UseCompactInts(true)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	look := packed{data: data.Bytes(), written: true}
	return look.data, look.whole()
}

func unpack(data []byte, into any) error {
	look := packed{data: data}
	switch into.(type) {
	case *any, *State:
		look.textKeys = true
	}
	if err := look.whole(); err != nil {
		return err
	}
	if into == nil {
		return errors.New("expected a pointer to a struct or a State, got nil")
	}
	prepare(reflect.TypeOf(into))
	d := msgpack.GetDecoder()
	defer msgpack.PutDecoder(d)
	d.Reset(bytes.NewReader(data))
	if err := d.Decode(into); err != nil {
		return err
	}
	widenAll(reflect.ValueOf(into))
	return nil
}

// widened converts all integers to int64 (uint64 where needed) and floats to float64; maps and slices are changed in place.
func widened(value any) any {
	switch v := value.(type) {
	case int8:
		return int64(v)
	case int16:
		return int64(v)
	case int32:
		return int64(v)
	case uint8:
		return int64(v)
	case uint16:
		return int64(v)
	case uint32:
		return int64(v)
	case uint64:
		if v <= math.MaxInt64 {
			return int64(v)
		}
	case float32:
		return float64(v)
	case State:
		for k := range v {
			v[k] = widened(v[k])
		}
	case []any:
		for i := range v {
			v[i] = widened(v[i])
		}
	}
	return value
}

// widenAll does the same with every `any` within a value.
func widenAll(v reflect.Value) {
	if !prepare(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Interface:
		if v.CanSet() && !v.IsNil() {
			v.Set(reflect.ValueOf(widened(v.Interface())))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			widenAll(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			widenAll(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() || f.Anonymous {
				widenAll(v.Field(i))
			}
		}
	case reflect.Map:
		if !v.CanSet() || v.IsNil() {
			return
		}
		if state, ok := v.Interface().(State); ok {
			widened(state)
		} else {
			v.Set(widenedMap(v))
		}
	}
}

// widenedMap returns a copy, since the entries of a map cannot be changed in place.
func widenedMap(v reflect.Value) reflect.Value {
	made := reflect.MakeMapWithSize(v.Type(), v.Len())
	for entry := v.MapRange(); entry.Next(); {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		key.Set(entry.Key())
		value.Set(entry.Value())
		widenAll(key)
		widenAll(value)
		made.SetMapIndex(key, value)
	}
	return made
}

var holders sync.Map // reflect.Type -> whether its values may hold an `any`

// prepare looks through a type once: all numbers within its values are read exactly from then on. It returns whether these may hold an `any`.
func prepare(t reflect.Type) (holdsAny bool) {
	found, known := holders.Load(t)
	if !known {
		found = mayHold(t, map[reflect.Type]bool{})
		holders.Store(t, found)
	}
	return found.(bool)
}

func mayHold(t reflect.Type, seen map[reflect.Type]bool) (holds bool) {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return t.NumMethod() == 0
	case reflect.Map:
		holds = mayHold(t.Key(), seen)
		return mayHold(t.Elem(), seen) || holds
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return mayHold(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() || f.Anonymous {
				holds = mayHold(f.Type, seen) || holds
			}
		}
	default:
		readExactly(t)
	}
	return holds
}

package operator

// States and keys as MessagePack, in the profile of docs/operator-protocol.md.

import (
	"bytes"

	"github.com/vmihailenco/msgpack/v5"
)

func init() {
	msgpack.RegisterExt(1, (*LocalTime)(nil))
	msgpack.RegisterExt(2, (*Date)(nil))
	msgpack.RegisterExt(3, (*Decimal)(nil))
}

func pack(value any) ([]byte, error) {
	var data bytes.Buffer
	e := msgpack.GetEncoder()
	defer msgpack.PutEncoder(e)
	e.Reset(&data)
	e.UseCompactInts(true)
	e.SetSortMapKeys(true)
	err := e.Encode(value)
	return data.Bytes(), err
}

func unpack(data []byte, into any) error {
	d := msgpack.GetDecoder()
	defer msgpack.PutDecoder(d)
	d.Reset(bytes.NewReader(data))
	if err := d.Decode(into); err != nil {
		return err
	}
	switch v := into.(type) {
	case *any:
		*v = widened(*v)
	case *State:
		widened(*v)
	}
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

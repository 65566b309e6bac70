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
	d.UseLooseInterfaceDecoding(true)
	return d.Decode(into)
}

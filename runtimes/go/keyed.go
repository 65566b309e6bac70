package operator

// Keys and their states, in the tables that the engine sends and gets back.

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"udo.dev/operator/internal/pb"
)

// Key is the key of an event: its state, its timers, and everything in Context. The keys of a frame share their timers: set these in one
// goroutine at a time.
type Key struct {
	*Context
	number  int32
	key     []byte
	state   []byte
	expires *int64
	changed bool
	timers  *[]timer
}

type timer struct {
	key int32
	at  int64
}

// Key returns the value of the key column, of the types that Event.Value returns, or a slice of the values of several.
func (k *Key) Key() any {
	var key any
	if err := unpack(k.key, &key); err != nil {
		panic(fmt.Errorf("the key: %w", err))
	}
	return key
}

// State reads the key's state into a struct with msgpack tags or a State; false if it has none. What is read into an `any` is of the types
// that Event.Value returns, with integers as int64 (beyond it uint64), lists as []any and maps as State. It is an error if a map has keys
// other than text, which only Python reads; a struct's field of a type such as map[int64]string reads them, too.
func (k *Key) State(into any) (bool, error) {
	if k.state == nil {
		return false, nil
	}
	if err := unpack(k.state, into); err != nil {
		return true, fmt.Errorf("the state of %v cannot be read into a %T: %w", k.Key(), into, err)
	}
	return true, nil
}

// SetState replaces the key's state with a struct or a State. It is an error, which names the key, if that cannot be stored.
func (k *Key) SetState(state any) error {
	packed, err := pack(state)
	if err != nil {
		return fmt.Errorf("the state of %v cannot be stored: %w", k.Key(), err)
	}
	if len(packed) == 0 || packed[0]&0xf0 != 0x80 && packed[0] != 0xde && packed[0] != 0xdf {
		return fmt.Errorf("the state of %v is a %T: expected a struct or a map from text", k.Key(), state)
	}
	k.state, k.changed = packed, true
	return nil
}

// Clear drops the key's state and its expiry.
func (k *Key) Clear() { k.state, k.expires, k.changed = nil, nil, true }

// Timer has OnTimer called for this key at the end of the first epoch whose watermark has reached `at`, once for each time. It panics for a
// time beyond the years 1 to 9999, as Expire does.
func (k *Key) Timer(at time.Time) {
	*k.timers = append(*k.timers, timer{k.number, micros("timer", at)})
}

// Expire drops the key's state at the end of the first epoch whose watermark has reached `at`; a later call replaces it.
func (k *Key) Expire(at time.Time) {
	us := micros("expiration", at)
	k.expires, k.changed = &us, true
}

func micros(what string, at time.Time) int64 {
	if year := at.UTC().Year(); year < 1 || year > 9999 {
		panic(fmt.Errorf("the %s lies in the year %d: expected the years 1 to 9999", what, year))
	}
	return at.UnixMicro()
}

func columns(name string, t arrow.DataType, more ...arrow.Field) *arrow.Schema {
	return arrow.NewSchema(append([]arrow.Field{{Name: name, Type: t, Nullable: true}}, more...), nil)
}

var (
	packedState = []arrow.Field{
		{Name: "state", Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: "expires_us", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	}
	atUs        = arrow.Field{Name: "at_us", Type: arrow.PrimitiveTypes.Int64, Nullable: true}
	indexTable  = columns("key", arrow.PrimitiveTypes.Int32)
	keysTable   = columns("key", arrow.BinaryTypes.Binary, packedState...)
	statesTable = columns("key", arrow.PrimitiveTypes.Int32, packedState...)
	timesTable  = columns("key", arrow.PrimitiveTypes.Int32, atUs)
)

func schemaMessage(schema *arrow.Schema) []byte {
	var data bytes.Buffer
	payload := ipc.GetSchemaPayload(schema, memory.DefaultAllocator)
	defer payload.Release()
	if _, err := payload.WritePayload(&data); err != nil {
		panic(err)
	}
	return data.Bytes()
}

// keyed decodes the tables whose schemas the protocol fixes.
type keyed struct{ index, keys, times *decoder }

func newKeyed() *keyed {
	made := func(schema *arrow.Schema) *decoder {
		d, err := decoderOf(schemaMessage(schema))
		if err != nil {
			panic(err)
		}
		return d
	}
	return &keyed{made(indexTable), made(keysTable), made(timesTable)}
}

func (k *keyed) touched(data []byte, ctx *Context, timers *[]timer) ([]*Key, error) {
	batch, err := k.keys.batch(data)
	if err != nil {
		return nil, err
	}
	keys, states, expires := batch.Column(0).(*array.Binary), batch.Column(1).(*array.Binary), batch.Column(2).(*array.Int64)
	touched := make([]*Key, batch.NumRows())
	all := make([]Key, batch.NumRows())
	for i := range touched {
		all[i] = Key{Context: ctx, number: int32(i), key: keys.Value(i), timers: timers}
		if states.IsValid(i) {
			all[i].state = states.Value(i)
		}
		if expires.IsValid(i) {
			us := expires.Value(i)
			all[i].expires = &us
		}
		touched[i] = &all[i]
	}
	return touched, nil
}

func (k *keyed) due(data []byte) ([]timer, error) {
	batch, err := k.times.batch(data)
	if err != nil {
		return nil, err
	}
	keys, at := batch.Column(0).(*array.Int32), batch.Column(1).(*array.Int64)
	due := make([]timer, batch.NumRows())
	for i := range due {
		due[i] = timer{keys.Value(i), at.Value(i)}
	}
	return due, nil
}

func (k *keyed) rows(data []byte, touched []*Key) ([]*Key, error) {
	batch, err := k.index.batch(data)
	if err != nil {
		return nil, err
	}
	rows := make([]*Key, batch.NumRows())
	for i, n := range batch.Column(0).(*array.Int32).Int32Values() {
		if n < 0 || int(n) >= len(touched) {
			return nil, errors.New("an event's key is not among those sent")
		}
		rows[i] = touched[n]
	}
	return rows, nil
}

// changes returns the tables STATES and SET of an answer.
func changes(touched []*Key, timers []timer, all bool) []table {
	b := array.NewRecordBuilder(memory.DefaultAllocator, statesTable)
	number, state := b.Field(0).(*array.Int32Builder), b.Field(1).(*array.BinaryBuilder)
	expires := b.Field(2).(*array.Int64Builder)
	for _, k := range touched {
		if !k.changed && !all {
			continue
		}
		number.Append(k.number)
		if k.state == nil {
			state.AppendNull()
		} else {
			state.Append(k.state)
		}
		if k.expires == nil {
			expires.AppendNull()
		} else {
			expires.Append(*k.expires)
		}
	}
	tables := []table{{pb.Part_STATES, b.NewRecordBatch()}}
	if len(timers) == 0 {
		return tables
	}
	b = array.NewRecordBuilder(memory.DefaultAllocator, timesTable)
	for _, t := range timers {
		b.Field(0).(*array.Int32Builder).Append(t.key)
		b.Field(1).(*array.Int64Builder).Append(t.at)
	}
	return append(tables, table{pb.Part_SET, b.NewRecordBatch()})
}

package operator

// The wire form (docs/operator-protocol.md): u32 header, u32 body, Protobuf header, padding to 8, Arrow record batch messages.

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/protobuf/proto"

	"udo.dev/operator/internal/pb"
)

var zeros [8]byte

func padding(n int) int { return -n & 7 }

type wire struct {
	reader *bufio.Reader
	conn   net.Conn
	lock   sync.Mutex // an operator may log from any goroutine
	shared *shared    // once agreed on
	bound  int64      // of an answer's tables in bytes, in the body or in shared memory; given by Start
}

type table struct {
	kind  pb.Part_Table
	batch arrow.RecordBatch
}

func dial(path string) (*wire, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return &wire{reader: bufio.NewReaderSize(conn, 64<<10), conn: conn}, nil
}

// receive reads one message and the bytes of its tables.
func (w *wire) receive() (*pb.Message, map[pb.Part_Table][]byte, error) {
	var prefix [8]byte
	if _, err := io.ReadFull(w.reader, prefix[:]); err != nil {
		return nil, nil, err
	}
	size := int(binary.LittleEndian.Uint32(prefix[:4]))
	head := make([]byte, size+padding(size))
	if _, err := io.ReadFull(w.reader, head); err != nil {
		return nil, nil, err
	}
	body := make([]byte, binary.LittleEndian.Uint32(prefix[4:]))
	if _, err := io.ReadFull(w.reader, body); err != nil {
		return nil, nil, err
	}
	message := &pb.Message{}
	if err := proto.Unmarshal(head[:size], message); err != nil {
		return nil, nil, err
	}
	tables := make(map[pb.Part_Table][]byte, len(message.Parts))
	at := 0
	for _, part := range message.Parts {
		if part.SharedOffset != nil {
			if w.shared == nil {
				return nil, nil, fmt.Errorf("part %v lies in shared memory, which was not agreed on", part.Table)
			}
			data, err := w.shared.take(*part.SharedOffset, part.Bytes)
			if err != nil {
				return nil, nil, err
			}
			tables[part.Table] = data
			continue
		}
		end := at + int(part.Bytes)
		if end > len(body) {
			return nil, nil, fmt.Errorf("part %v lies outside of the body", part.Table)
		}
		tables[part.Table] = body[at:end]
		at = end + padding(end)
	}
	return message, tables, nil
}

// send writes one message with its tables. If they exceed the bound, it writes nothing and returns tooLarge.
func (w *wire) send(message *pb.Message, tables ...table) error {
	var body bytes.Buffer
	if len(tables) > 0 && w.shared != nil {
		w.shared.used = 0
	}
	large := tooLarge{bound: w.bound}
	for _, t := range tables {
		part, err := w.put(t, &body)
		if err != nil {
			return err
		}
		message.Parts = append(message.Parts, part)
		large.size += int64(part.Bytes) + int64(padding(int(part.Bytes)))
		switch t.kind {
		case pb.Part_ROWS:
			large.events = t.batch.NumRows()
		case pb.Part_STATES:
			large.states = t.batch.NumRows()
		}
	}
	if large.size > large.bound {
		return large
	}
	head, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	data := make([]byte, 8, 16+len(head))
	binary.LittleEndian.PutUint32(data, uint32(len(head)))
	binary.LittleEndian.PutUint32(data[4:], uint32(body.Len()))
	data = append(append(data, head...), zeros[:padding(len(head))]...)
	w.lock.Lock()
	defer w.lock.Unlock()
	pieces := net.Buffers{data, body.Bytes()}
	_, err = pieces.WriteTo(w.conn)
	return err
}

// put writes a table into shared memory, if there is any and the table is large, or else into the body.
func (w *wire) put(t table, body *bytes.Buffer) (*pb.Part, error) {
	payload, err := ipc.GetRecordBatchPayload(t.batch)
	if err != nil {
		return nil, err
	}
	defer payload.Release()
	write := func(to io.Writer) error { _, err := payload.WritePayload(to); return err }
	start := body.Len()
	var data []byte
	if w.shared != nil {
		var offset *uint64
		if data, offset, err = w.shared.put(write); err != nil {
			return nil, err
		}
		if offset != nil {
			return &pb.Part{Table: t.kind, Bytes: uint64(len(data)), SharedOffset: offset}, nil
		}
	}
	if data != nil {
		body.Write(data)
	} else if err := write(body); err != nil {
		return nil, err
	}
	size := body.Len() - start
	body.Write(zeros[:padding(size)])
	return &pb.Part{Table: t.kind, Bytes: uint64(size)}, nil
}

// decoder makes record batches from messages that have no schema of their own.
type decoder struct {
	schema *arrow.Schema
	reader *ipc.Reader
	next   *ipc.Message
}

var errGarbled = errors.New("not an Arrow message")

// decoderOf returns a decoder for the schema in this Arrow schema message.
func decoderOf(schema []byte) (*decoder, error) {
	d := &decoder{}
	if err := d.give(schema); err != nil {
		return nil, err
	}
	reader, err := ipc.NewReaderFromMessageReader(d)
	if err != nil {
		return nil, err
	}
	d.reader, d.schema = reader, reader.Schema()
	return d, nil
}

func (d *decoder) give(data []byte) error {
	if len(data) < 8 {
		return errGarbled
	}
	size := int(binary.LittleEndian.Uint32(data[4:]))
	if 8+size > len(data) {
		return errGarbled
	}
	d.next = ipc.NewMessage(memory.NewBufferBytes(data[8:8+size]), memory.NewBufferBytes(data[8+size:]))
	return nil
}

func (d *decoder) batch(data []byte) (arrow.RecordBatch, error) {
	if err := d.give(data); err != nil {
		return nil, err
	}
	return d.reader.Read()
}

// Message, Retain and Release make it a source of messages for Arrow's reader.
func (d *decoder) Message() (*ipc.Message, error) { return d.next, nil }
func (d *decoder) Retain()                        {}
func (d *decoder) Release()                       {}

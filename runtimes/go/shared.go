package operator

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// leastShared is the least size of a table to share: smaller ones cost less in the message itself.
const leastShared = 32 << 10

// shared is the memory offered by the engine in UDO_OPERATOR_SHARED: its first half holds tables of requests, the second those of replies.
type shared struct {
	requests, replies []byte
	used              int // bytes of replies used by the message being written
}

// givenShared maps the memory that the engine offers. It returns nil if there is none, or it cannot be mapped.
func givenShared() *shared {
	file, err := os.OpenFile(os.Getenv("UDO_OPERATOR_SHARED"), os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer file.Close()
	of, err := file.Stat()
	if err != nil {
		return nil
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, int(of.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil
	}
	half := len(memory) / 2
	return &shared{requests: memory[:half:half], replies: memory[half:]}
}

// take copies a table of a request: the engine overwrites it with the next one.
func (s *shared) take(offset, size uint64) ([]byte, error) {
	whole := uint64(len(s.requests))
	if offset > whole || size > whole-offset {
		return nil, errors.New("a table lies outside of the shared memory")
	}
	return append([]byte(nil), s.requests[offset:offset+size]...), nil
}

// put writes a table into the memory. It returns the table's bytes, nil if there is no room, and the table's offset. There is no offset
// for a small table, which is better sent in the message.
func (s *shared) put(write func(io.Writer) error) ([]byte, *uint64, error) {
	into := &room{left: s.replies[min(s.used, len(s.replies)):]}
	whole := into.left
	if err := write(into); err != nil {
		if errors.Is(err, errNoRoom) {
			err = nil
		}
		return nil, nil, err
	}
	table := whole[:len(whole)-len(into.left)]
	if len(table) < leastShared {
		return table, nil, nil
	}
	offset := uint64(len(s.requests) + s.used)
	s.used += (len(table) + 63) &^ 63
	return table, &offset, nil
}

var errNoRoom = errors.New("no room in the shared memory")

// room is the rest of a slice, as a writer.
type room struct{ left []byte }

func (r *room) Write(data []byte) (int, error) {
	if len(data) > len(r.left) {
		return 0, errNoRoom
	}
	n := copy(r.left, data)
	r.left = r.left[n:]
	return n, nil
}

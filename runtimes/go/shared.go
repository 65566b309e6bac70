package operator

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// leastShared: smaller tables cost less in the message itself.
const leastShared = 32 << 10

// shared is the memory that the engine has offered in UDO_OPERATOR_SHARED: its first half holds tables of requests, the second those of
// replies.
type shared struct {
	requests, replies []byte
	used              int // of replies, by the message that is being written
}

// givenShared is nil if there is none, or it is not to be had.
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

// take copies a table of a request: the engine writes the next one over it.
func (s *shared) take(offset, size uint64) ([]byte, error) {
	whole := uint64(len(s.requests))
	if offset > whole || size > whole-offset {
		return nil, errors.New("a table lies outside of the shared memory")
	}
	return append([]byte(nil), s.requests[offset:offset+size]...), nil
}

// put lets a table be written there. It returns the table's bytes, and its offset in the memory if it is to stay there: a small one is
// better sent. No bytes: there is no room.
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

// room is what is left of a slice.
type room struct{ left []byte }

func (r *room) Write(data []byte) (int, error) {
	if len(data) > len(r.left) {
		return 0, errNoRoom
	}
	n := copy(r.left, data)
	r.left = r.left[n:]
	return n, nil
}

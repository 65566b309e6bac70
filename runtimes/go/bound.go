package operator

// The bound of an answer, given by Start: an answer's size is checked while it is gathered, and once more before it is sent.

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// noBound is the size of the largest possible body, whose length is a number of 32 bits.
const noBound = math.MaxUint32

// tooLarge says that an answer is larger than the bound.
type tooLarge struct{ events, states, size, bound int64 }

func (e tooLarge) Error() string {
	what := fmt.Sprintf("%d events", e.events)
	if e.states > 0 {
		what += fmt.Sprintf(" and %d states", e.states)
	}
	return fmt.Sprintf("the answer to one frame has %s of %d bytes; the bound is %d: return less per event, or send fewer events at a time",
		what, e.size, e.bound)
}

// sizes gives a lower bound on the size of the rows in some builders: validity bitmaps are not counted.
type sizes struct {
	fixed  int64           // bits of a row's values of fixed width
	varied []array.Builder // the other columns
}

func sizesOf(columns []array.Builder) sizes {
	var s sizes
	for _, b := range columns {
		if t, ok := b.Type().(arrow.FixedWidthDataType); ok {
			s.fixed += int64(t.BitWidth())
		} else {
			s.varied = append(s.varied, b)
		}
	}
	return s
}

func (s *sizes) of(rows int64) int64 {
	size := s.fixed * rows / 8
	for _, b := range s.varied {
		size += sizeOf(b)
	}
	return size
}

func sizeOf(b array.Builder) int64 {
	switch b := b.(type) {
	case *array.StringBuilder:
		return int64(b.DataLen() + 4*b.Len())
	case *array.BinaryBuilder:
		return int64(b.DataLen() + 4*b.Len())
	case *array.LargeStringBuilder:
		return int64(b.DataLen() + 8*b.Len())
	case *array.StructBuilder:
		var size int64
		for i := range b.NumField() {
			size += sizeOf(b.FieldBuilder(i))
		}
		return size
	case *array.MapBuilder:
		return int64(4*b.Len()) + sizeOf(b.KeyBuilder()) + sizeOf(b.ItemBuilder())
	case *array.FixedSizeListBuilder:
		return sizeOf(b.ValueBuilder())
	case array.ListLikeBuilder:
		return int64(4*b.Len()) + sizeOf(b.ValueBuilder())
	}
	if t, ok := b.Type().(arrow.FixedWidthDataType); ok {
		return int64(t.BitWidth()) * int64(b.Len()) / 8
	}
	return 0
}

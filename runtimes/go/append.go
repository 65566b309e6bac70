package operator

// Values of operators appended to columns: exactly, or not at all.

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/scalar"
)

var (
	errForm  = errors.New("it is of another form")
	errRange = errors.New("it is beyond the range of the column's type")
	errText  = errors.New("it is not UTF-8: do not cut text inside of a character, and give other bytes a column of type binary")
)

// appendNested copies one value of an array, with everything nested in it.
func appendNested(b array.Builder, from arrow.Array, row int) error {
	if !arrow.TypeEqual(from.DataType(), b.Type()) {
		return fmt.Errorf("it is %s", from.DataType())
	}
	if from.IsNull(row) {
		b.AppendNull()
		return nil
	}
	switch from := from.(type) {
	case *array.Map:
		b := b.(*array.MapBuilder)
		b.Append(true)
		first, last := from.ValueOffsets(row)
		for i := int(first); i < int(last); i++ {
			if err := errors.Join(appendNested(b.KeyBuilder(), from.Keys(), i), appendNested(b.ItemBuilder(), from.Items(), i)); err != nil {
				return err
			}
		}
		return nil
	case array.ListLike:
		b := b.(array.ListLikeBuilder)
		b.Append(true)
		first, last := from.ValueOffsets(row)
		for i := int(first); i < int(last); i++ {
			if err := appendNested(b.ValueBuilder(), from.ListValues(), i); err != nil {
				return err
			}
		}
		return nil
	case *array.Struct:
		b := b.(*array.StructBuilder)
		b.Append(true)
		for i := range from.NumField() {
			if err := appendNested(b.FieldBuilder(i), from.Field(i), row); err != nil {
				return err
			}
		}
		return nil
	}
	return appendValue(b, valueOf(from, row))
}

func appendValue(b array.Builder, value any) error {
	switch v := value.(type) {
	case nil:
		b.AppendNull()
		return nil
	case int64:
		return appendInt(b, v)
	case float64:
		return appendFloat(b, v)
	case string:
		return appendText(b, v)
	case time.Time:
		return appendTime(b, v)
	case LocalTime:
		return appendTime(b, v.wall())
	case Date:
		return appendDate(b, v)
	case Decimal:
		exact, ok := new(big.Rat), number.MatchString(string(v))
		if ok {
			exact, ok = exact.SetString(string(v))
		}
		if !ok {
			return errors.New("it is no number: expected digits, as in \"-12.50\"")
		}
		return appendDecimal(b, exact)
	case time.Duration:
		if b, ok := b.(*array.DurationBuilder); ok {
			unit := b.Type().(*arrow.DurationType).Unit.Multiplier()
			if v%unit != 0 {
				return fmt.Errorf("it is no multiple of %v", unit)
			}
			b.Append(arrow.Duration(v / unit))
			return nil
		}
	case Nested:
		return appendNested(b, v.Array, v.Row)
	case scalar.Scalar:
		return scalar.Append(b, v)
	case arrow.Date32, arrow.Date64, float16.Num, arrow.MonthInterval, arrow.DayTimeInterval, arrow.MonthDayNanoInterval:
		return scalar.Append(b, scalar.MakeScalar(v))
	}
	v := reflect.ValueOf(value)
	if _, list := b.(array.ListLikeBuilder); !list && v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
		return appendText(b, v.Bytes())
	}
	if done, err := appendGo(b, value); done {
		return err
	}
	return appendKind(b, v)
}

// appendKind appends values of all types that are numbers, text or booleans underneath.
func appendKind(b array.Builder, v reflect.Value) error {
	switch {
	case v.CanInt():
		return appendInt(b, v.Int())
	case v.CanUint():
		if v.Uint() <= math.MaxInt64 {
			return appendInt(b, int64(v.Uint()))
		}
		switch b := b.(type) {
		case *array.Uint64Builder:
			b.Append(v.Uint())
			return nil
		case *array.Decimal128Builder, *array.Decimal256Builder:
			return appendDecimal(b, new(big.Rat).SetUint64(v.Uint()))
		}
		return errRange
	case v.CanFloat():
		return appendFloat(b, v.Float())
	case v.Kind() == reflect.String:
		return appendText(b, v.String())
	case v.Kind() == reflect.Bool:
		if b, ok := b.(*array.BooleanBuilder); ok {
			b.Append(v.Bool())
			return nil
		}
	}
	return errForm
}

func appendInt(b array.Builder, v int64) error {
	switch b := b.(type) {
	case *array.Int64Builder:
		b.Append(v)
		return nil
	case *array.Int32Builder:
		return narrowed(v, b.Append)
	case *array.Int16Builder:
		return narrowed(v, b.Append)
	case *array.Int8Builder:
		return narrowed(v, b.Append)
	case *array.Uint64Builder:
		if v < 0 {
			return errRange
		}
		b.Append(uint64(v))
		return nil
	case *array.Uint32Builder:
		return narrowed(v, b.Append)
	case *array.Uint16Builder:
		return narrowed(v, b.Append)
	case *array.Uint8Builder:
		return narrowed(v, b.Append)
	case *array.Float64Builder:
		return floating(v, 53, b.Append)
	case *array.Float32Builder:
		return floating(v, 24, b.Append)
	case *array.Decimal128Builder, *array.Decimal256Builder:
		return appendDecimal(b, new(big.Rat).SetInt64(v))
	}
	return errForm
}

func narrowed[T int8 | int16 | int32 | uint8 | uint16 | uint32](v int64, to func(T)) error {
	if int64(T(v)) != v {
		return errRange
	}
	to(T(v))
	return nil
}

// floating takes integers of up to this many bits, all of which the column's type holds exactly.
func floating[T float32 | float64](v int64, bits int, to func(T)) error {
	if most := int64(1) << bits; v > most || v < -most {
		return fmt.Errorf("it is beyond the integers of %d bits, which the column's type holds exactly", bits)
	}
	to(T(v))
	return nil
}

func appendFloat(b array.Builder, v float64) error {
	switch b := b.(type) {
	case *array.Float64Builder:
		b.Append(v)
		return nil
	case *array.Float32Builder:
		b.Append(float32(v))
		return nil
	}
	return errForm
}

func appendText[T string | []byte](b array.Builder, v T) error {
	switch b := b.(type) {
	case array.StringLikeBuilder:
		text := string(v)
		if !utf8.ValidString(text) {
			return errText
		}
		b.Append(text)
		return nil
	case *array.BinaryBuilder:
		b.Append([]byte(v))
		return nil
	case *array.FixedSizeBinaryBuilder:
		if want := b.Type().(*arrow.FixedSizeBinaryType).ByteWidth; len(v) != want {
			return fmt.Errorf("expected %d bytes, got %d", want, len(v))
		}
		b.Append([]byte(v))
		return nil
	}
	return errForm
}

func appendTime(b array.Builder, v time.Time) error {
	if b, ok := b.(*array.TimestampBuilder); ok {
		at, err := arrow.TimestampFromTime(v, b.Type().(*arrow.TimestampType).Unit)
		if err == nil {
			b.Append(at)
		}
		return err
	}
	return appendDate(b, Date{v})
}

func appendDate(b array.Builder, v Date) error {
	switch b := b.(type) {
	case *array.Date32Builder:
		return narrowed(v.days(), func(days int32) { b.Append(arrow.Date32(days)) })
	case *array.Date64Builder:
		b.Append(arrow.Date64(v.days() * 86_400_000))
		return nil
	}
	return errForm
}

func appendDecimal(b array.Builder, v *big.Rat) error {
	of, ok := b.Type().(arrow.DecimalType)
	if !ok {
		return errForm
	}
	scaled := new(big.Rat).Mul(v, tenTo(of.GetScale()))
	if !scaled.IsInt() {
		return fmt.Errorf("it has more than %d digits behind its point", of.GetScale())
	}
	if scaled.Num().CmpAbs(tenTo(of.GetPrecision()).Num()) >= 0 {
		return errRange
	}
	switch b := b.(type) {
	case *array.Decimal128Builder:
		b.Append(decimal128.FromBigInt(scaled.Num()))
	case *array.Decimal256Builder:
		b.Append(decimal256.FromBigInt(scaled.Num()))
	default:
		return errForm
	}
	return nil
}

func decimalOf(digits *big.Int, of arrow.DecimalType) Decimal {
	if scale := of.GetScale(); scale >= 0 {
		return Decimal(new(big.Rat).Quo(new(big.Rat).SetInt(digits), tenTo(scale)).FloatString(int(scale)))
	}
	return Decimal(fmt.Sprintf("%vE+%d", digits, -of.GetScale()))
}

func tenTo(power int32) *big.Rat {
	n := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(max(int64(power), -int64(power))), nil))
	if power < 0 {
		return n.Inv(n)
	}
	return n
}

// garbledText returns text that is not UTF-8 in a column, or in its nested columns. The engine ends a process that answers such text.
func garbledText(column arrow.Array) (string, bool) {
	switch c := column.(type) {
	case array.StringLike:
		for row := range c.Len() {
			if c.IsValid(row) && !utf8.ValidString(c.Value(row)) {
				return c.Value(row), true
			}
		}
	case array.ListLike:
		return garbledText(c.ListValues())
	case *array.Struct:
		for i := range c.NumField() {
			if text, garbled := garbledText(c.Field(i)); garbled {
				return text, true
			}
		}
	}
	return "", false
}

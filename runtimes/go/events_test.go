package operator

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

type (
	price float64
	card  int64
	name  string
	flag  bool
	raw   []byte
)

var (
	i8, i32, i64   = arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64
	u8, u64        = arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint64
	f32, f64       = arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64
	text, large    = arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString
	blob, fixed    = arrow.BinaryTypes.Binary, &arrow.FixedSizeBinaryType{ByteWidth: 2}
	boolean, date  = arrow.FixedWidthTypes.Boolean, arrow.FixedWidthTypes.Date32
	money          = &arrow.Decimal128Type{Precision: 10, Scale: 2}
	utc            = &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}
	naive          = &arrow.TimestampType{Unit: arrow.Microsecond}
	lasted         = &arrow.DurationType{Unit: arrow.Microsecond}
	noon           = time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	leapDay        = Date{noon.Truncate(24 * time.Hour)}
	east           = time.FixedZone("east", 3600)
	largest        = int64(math.MaxInt64)
	beyond         = uint64(math.MaxInt64) + 1
	garbled        = "Zürich"[:2]
	beforeTheEpoch = time.Date(1969, 12, 31, 12, 0, 0, 0, time.UTC)
)

// through emits a value into a column, and returns what an event with that column has.
func through(of arrow.DataType, value any) (got any, failed any) {
	defer func() { failed = recover() }()
	b := builderOf(arrow.NewSchema([]arrow.Field{{Name: "v", Type: of, Nullable: true}}, nil), noBound)
	b.append(Row{"v": value})
	return valueOf(b.take().Column(0), 0), nil
}

func TestAValueIsAnsweredExactly(t *testing.T) {
	for _, c := range []struct {
		of         arrow.DataType
		given, got any
	}{
		{i8, 127, int64(127)}, {i64, card(5_000_000_000), int64(5_000_000_000)}, {i64, uint64(largest), largest}, {i64, uint8(200), int64(200)},
		{u8, 255, int64(255)}, {u64, beyond, beyond}, {u64, uint64(5), uint64(5)}, {i64, arrow.Timestamp(5_000_000_000), int64(5_000_000_000)},
		{f64, price(12.75), 12.75}, {f64, float32(0.5), 0.5}, {f64, 1 << 53, float64(1 << 53)}, {f32, 0.5, 0.5}, {f32, 7, 7.0},
		{f64, math.Inf(1), math.Inf(1)}, {f32, math.Inf(-1), math.Inf(-1)},
		{money, 5, Decimal("5.00")}, {money, Decimal("-12.5"), Decimal("-12.50")}, {money, Decimal("1E+2"), Decimal("100.00")},
		{money, Decimal("1.500"), Decimal("1.50")}, {&arrow.Decimal128Type{Precision: 38, Scale: 0}, beyond, Decimal(fmt.Sprint(beyond))},
		{&arrow.Decimal128Type{Precision: 38, Scale: 38}, Decimal("0." + strings.Repeat("9", 38)), Decimal("0." + strings.Repeat("9", 38))},
		{&arrow.Decimal256Type{Precision: 60, Scale: 1}, Decimal(strings.Repeat("9", 59)), Decimal(strings.Repeat("9", 59) + ".0")},
		{&arrow.Decimal128Type{Precision: 5, Scale: -2}, 1200, Decimal("12E+2")},
		{text, name("Zürich"), "Zürich"}, {large, "Zürich", "Zürich"}, {text, []byte("Zürich"), "Zürich"},
		{blob, []byte(garbled), []byte(garbled)}, {blob, raw(garbled), []byte(garbled)}, {blob, "a", []byte("a")},
		{arrow.BinaryTypes.LargeBinary, []byte{1}, []byte{1}}, {fixed, []byte{1, 2}, []byte{1, 2}},
		{arrow.ListOf(u8), []byte{1, 2}, []any{int64(1), int64(2)}},
		{boolean, flag(true), true},
		{date, noon, leapDay}, {date, Date{noon}, leapDay},
		{date, Date{beforeTheEpoch}, Date{beforeTheEpoch.Add(-12 * time.Hour)}},
		{date, Date{time.Date(2024, 3, 1, 0, 0, 0, 0, east)}, Date{time.Date(2024, 3, 1, 0, 0, 0, 0, time.UTC)}},
		{date, arrow.Date32(1), Date{time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC)}},
		{utc, noon, noon}, {utc, noon.In(east), noon}, {naive, noon, LocalTime{noon}}, {naive, LocalTime{noon}, LocalTime{noon}},
		{naive, LocalTime{time.Date(2024, 2, 29, 12, 0, 0, 0, east)}, LocalTime{noon}},
	} {
		got, failed := through(c.of, c.given)
		if nested, ok := got.(Nested); ok {
			got = nested.Go()
		}
		if failed != nil || !reflect.DeepEqual(got, c.got) {
			t.Errorf("%v (%T) into %s: expected %v (%T), got %v (%T): %v", c.given, c.given, c.of, c.got, c.got, got, got, failed)
		}
	}
	if got, failed := through(lasted, 1500*time.Microsecond); failed != nil || fmt.Sprint(got) != "1.5ms" {
		t.Errorf("a duration: %v, %v", got, failed)
	}
	if got, _ := through(f64, math.NaN()); !math.IsNaN(got.(float64)) {
		t.Error("NaN became", got)
	}
}

func TestAValueThatItsColumnDoesNotHoldIsRefused(t *testing.T) {
	for _, c := range []struct {
		of    arrow.DataType
		given any
	}{
		{i8, 300}, {i8, int64(-129)}, {i32, math.MaxInt32 + 1}, {u64, -1}, {u8, 256}, {u8, -1}, {i64, beyond}, {f64, 1<<53 + 1}, {f32, 1<<24 + 1},
		{i64, 1.9}, {i64, 1.0}, {i64, price(1)}, {i64, "010"}, {i64, true}, {text, 5}, {text, 1.5}, {boolean, 7}, {boolean, "true"},
		{f64, "1.5"}, {f64, true}, {f64, Decimal("1.5")}, {text, Decimal("1.5")},
		{money, Decimal("12.345")}, {money, Decimal("123456789.00")}, {money, 1.5}, {money, "1.50"}, {money, 123456789}, {money, beyond},
		{money, Decimal("")}, {money, Decimal("Inf")}, {money, Decimal("NaN")}, {money, Decimal("1/2")}, {money, Decimal("0x10")},
		{text, garbled}, {large, garbled}, {text, []byte(garbled)}, {text, name(garbled)}, {arrow.ListOf(text), []string{garbled}},
		{fixed, []byte{1}}, {blob, 5}, {date, 5}, {date, "2024-02-29"}, {naive, 5}, {utc, Date{noon}}, {text, noon}, {lasted, time.Nanosecond},
		{i64, Date{noon}}, {i64, LocalTime{noon}}, {i64, struct{}{}}, {i64, &beyond}, {arrow.Null, 5},
	} {
		got, failed := through(c.of, c.given)
		if wrong, ok := failed.(SchemaError); !ok || !strings.Contains(wrong.Reason, `column "v": expected `) {
			t.Errorf("%v (%T) into %s: expected a SchemaError, got %v (%T): %v", c.given, c.given, c.of, got, got, failed)
		}
	}
}

func TestAMapWithKeysThatAreNoNumbersIsAnswered(t *testing.T) {
	if _, failed := through(arrow.MapOf(f64, i64), map[float64]int64{math.NaN(): 1, 1: 2}); failed != nil {
		t.Error(failed)
	}
}

func TestIntegersTextAndTimesAreReadFromColumnsOfAnyWidth(t *testing.T) {
	fields := []arrow.Field{
		{Name: "u8", Type: u8}, {Name: "u16", Type: arrow.PrimitiveTypes.Uint16}, {Name: "u32", Type: arrow.PrimitiveTypes.Uint32},
		{Name: "u64", Type: u64}, {Name: "large", Type: large}, {Name: "naive", Type: naive}, {Name: "much", Type: u64},
		{Name: "none", Type: u8, Nullable: true},
	}
	rows := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	rows.Field(0).(*array.Uint8Builder).Append(200)
	rows.Field(1).(*array.Uint16Builder).Append(60_000)
	rows.Field(2).(*array.Uint32Builder).Append(math.MaxUint32)
	rows.Field(3).(*array.Uint64Builder).Append(uint64(largest))
	rows.Field(4).(*array.LargeStringBuilder).Append("ü")
	rows.Field(5).(*array.TimestampBuilder).Append(arrow.Timestamp(noon.UnixMicro()))
	rows.Field(6).(*array.Uint64Builder).Append(beyond)
	rows.Field(7).AppendNull()
	batch := rows.NewRecordBatch()
	event := Event{batch: batch, columns: columnsOf(batch.Schema())}
	read := func(what func() any) (got any) {
		defer func() {
			if p := recover(); p != nil {
				got = p
			}
		}()
		return what()
	}
	for column, want := range map[string]int64{"u8": 200, "u16": 60_000, "u32": math.MaxUint32, "u64": largest, "none": 0} {
		if got := read(func() any { return event.Int(column) }); got != want {
			t.Errorf("%s: expected %d, got %v", column, want, got)
		}
	}
	if got := read(func() any { return event.Text("large") }); got != "ü" {
		t.Error("large:", got)
	}
	if got := read(func() any { return event.Time("naive") }); got != noon {
		t.Error("naive:", got)
	}
	if got := fmt.Sprint(read(func() any { return event.Int("much") })); !strings.Contains(got, `column "much"`) {
		t.Error("much:", got)
	}
}

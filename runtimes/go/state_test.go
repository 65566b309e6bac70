package operator

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

// Each golden value, read into an `any` and written again, has the same bytes.
func TestGoldenStatesAreReadAndWrittenAgain(t *testing.T) {
	data, err := os.ReadFile("../conformance/state.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden []struct{ Name, Packed string }
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	for _, g := range golden {
		packed, _ := hex.DecodeString(g.Packed)
		state := State{}
		if err := unpack(packed, &state); err != nil {
			t.Errorf("%s: %v", g.Name, err)
			continue
		}
		again, err := pack(state)
		if err != nil || hex.EncodeToString(again) != g.Packed {
			t.Errorf("%s: %s became %x (%T): %v", g.Name, g.Packed, again, state["v"], err)
		}
	}
	if len(golden) == 0 {
		t.Error("no golden values")
	}
}

// copied packs a value as a state's entry, and reads it into an `any`.
func copied(t *testing.T, value any) any {
	t.Helper()
	state := State{}
	packed, err := pack(State{"v": value})
	if err == nil {
		err = unpack(packed, &state)
	}
	if err != nil {
		t.Errorf("%v (%T): %v", value, value, err)
	}
	return state["v"]
}

func TestWhatAnEventHasIsReadFromAStateAsWhatItWas(t *testing.T) {
	defer func(zone *time.Location) { time.Local = zone }(time.Local)
	time.Local = east
	for _, value := range []any{
		int64(1) << 32, int64(9007199254740993), largest, int64(math.MinInt64), beyond, 0.5, "ü", []byte{0xff}, true, nil,
		noon, noon.Add(time.Nanosecond), time.Date(1969, 12, 31, 0, 0, 0, 1, time.UTC), LocalTime{noon}, leapDay,
		Decimal("-12.50"), []any{int64(300), LocalTime{noon}}, State{"a": Date{time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)}},
	} {
		if got := copied(t, value); !reflect.DeepEqual(got, value) {
			t.Errorf("%v (%T) became %v (%T)", value, value, got, got)
		}
	}
	for _, c := range []struct {
		of           arrow.DataType
		given, state any
	}{
		{money, Decimal("12.50"), Decimal("12.50")}, {date, noon, leapDay}, {u8, 200, int64(200)},
		{arrow.PrimitiveTypes.Uint16, 60_000, int64(60_000)}, {naive, noon, LocalTime{noon}}, {utc, noon, noon}, {large, "ü", "ü"},
		{arrow.ListOf(i64), []int{1, 2}, []any{int64(1), int64(2)}},
		{arrow.MapOf(text, money), map[string]int{"b": 1, "a": 2}, State{"a": Decimal("2.00"), "b": Decimal("1.00")}},
		{arrow.StructOf(arrow.Field{Name: "x", Type: date, Nullable: true}), map[string]any{"x": noon}, State{"x": leapDay}},
	} {
		event, failed := through(c.of, c.given)
		if got := copied(t, event); failed != nil || !reflect.DeepEqual(got, c.state) {
			t.Errorf("%s: %v (%T) became %v (%T), %v", c.of, event, event, got, got, failed)
		}
	}
	event, _ := through(lasted, time.Second)
	if packed, err := pack(State{"v": event}); err == nil || !strings.Contains(err.Error(), "a state cannot hold a *scalar.Duration") {
		t.Errorf("a duration became %x: %v", packed, err)
	}
}

func TestDaysAndClocksAreStoredAsTheyShow(t *testing.T) {
	for given, want := range map[Date]Date{
		{beforeTheEpoch}: {time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC)},
		{time.Date(2024, 3, 1, 0, 0, 0, 0, east)}: {time.Date(2024, 3, 1, 0, 0, 0, 0, time.UTC)},
	} {
		var got struct{ V *Date }
		if packed, err := pack(&struct{ V *Date }{&given}); err != nil || unpack(packed, &got) != nil || *got.V != want {
			t.Errorf("%v became %v, expected %v: %v", given, got.V, want, err)
		}
	}
	for given, want := range map[LocalTime]LocalTime{
		{time.Date(2024, 2, 29, 12, 0, 0, 0, east)}:    {noon},
		{time.Date(1969, 12, 31, 23, 59, 59, 0, east)}: {time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC)},
	} {
		var got struct{ V *LocalTime }
		if packed, err := pack(&struct{ V *LocalTime }{&given}); err != nil || unpack(packed, &got) != nil || *got.V != want {
			t.Errorf("%v became %v, expected %v: %v", given, got.V, want, err)
		}
	}
}

type dated struct {
	Day    Date
	At     LocalTime
	Zoned  time.Time
	Amount Decimal
	Last   *Date
}

func TestAStructOfDaysClocksAndDecimalsIsStoredByValueAndNullIsTheZeroValue(t *testing.T) {
	given := dated{leapDay, LocalTime{noon}, noon, "1.50", nil}
	packed, err := pack(given)
	var got dated
	if err == nil {
		err = unpack(packed, &got)
	}
	if err != nil || !reflect.DeepEqual(got, given) {
		t.Errorf("%v became %v: %v", given, got, err)
	}
	packed, _ = pack(State{"Day": nil, "At": nil, "Zoned": nil, "Amount": nil, "Last": nil})
	got = given
	if err := unpack(packed, &got); err != nil || !reflect.DeepEqual(got, dated{}) {
		t.Errorf("nulls became %v: %v", got, err)
	}
	packed, _ = pack(State{"Day": LocalTime{noon}})
	if err := unpack(packed, &got); err == nil || !strings.Contains(err.Error(), "expected operator.Date") {
		t.Error("a time was read as a day:", err)
	}
}

type status int8

func TestANumberThatAFieldDoesNotHoldIsRefused(t *testing.T) {
	for _, c := range []struct {
		stored any
		into   any
	}{
		{int64(5_000_000_000), &struct{ V int32 }{}}, {int64(5_000_000_000), &struct{ V *int32 }{}}, {128, &struct{ V status }{}},
		{-129, &struct{ V status }{}}, {beyond, &struct{ V int64 }{}}, {beyond, &struct{ V int }{}}, {-1, &struct{ V uint64 }{}},
		{int64(math.MinInt64), &struct{ V uint64 }{}}, {256, &struct{ V uint8 }{}}, {1<<53 + 1, &struct{ V float64 }{}},
		{beyond, &struct{ V float64 }{}}, {1<<24 + 1, &struct{ V float32 }{}}, {0.1, &struct{ V float32 }{}},
		{[]any{1, 70_000}, &struct{ V []int16 }{}}, {[]any{1, 70_000}, &struct{ V [2]int16 }{}}, {State{"a": 300}, &struct{ V map[string]int8 }{}},
		{State{"V": -1}, &struct{ V struct{ V uint32 } }{}}, {0.5, &struct{ V int64 }{}},
	} {
		key := &Key{Context: &Context{}, key: []byte{7}}
		if err := key.SetState(State{"V": c.stored}); err != nil {
			t.Fatal(err)
		}
		if _, err := key.State(c.into); err == nil || !strings.Contains(err.Error(), "the state of 7") {
			t.Errorf("%v became %+v: %v", c.stored, reflect.ValueOf(c.into).Elem(), err)
		} else if c.stored == beyond && !strings.Contains(err.Error(), fmt.Sprint(beyond, " is not one of the numbers of the type ")) {
			t.Error(err)
		}
	}
	type held struct {
		I8  status
		I64 int64
		U8  uint8
		U64 uint64
		F32 float32
		F64 float64
		Few []byte
		For time.Duration
		Own Decimal
	}
	for _, given := range []held{
		{127, largest, 255, beyond, 0.5, 1 << 53, []byte{1}, time.Second, "1.50"},
		{-128, math.MinInt64, 0, 0, -1 << 24, math.Inf(-1), nil, -1, "2"},
	} {
		var got, fromWhole held
		packed, err := pack(given)
		if err == nil {
			err = unpack(packed, &got)
		}
		if err != nil || !reflect.DeepEqual(got, given) {
			t.Errorf("%+v became %+v: %v", given, got, err)
		}
		packed, _ = pack(State{"F32": int64(1) << 24, "F64": -int64(1) << 53, "I64": nil, "U64": nil})
		if err := unpack(packed, &fromWhole); err != nil || fromWhole.F32 != 1<<24 || fromWhole.F64 != -1<<53 {
			t.Errorf("%+v: %v", fromWhole, err)
		}
	}
}

type embedded struct{ Deep any }

type holding struct {
	embedded
	Price  any
	Prices []any
	More   State
	By     map[string]any
	Of     map[string][]any
	Next   *holding
	Number int64
}

func TestAStateIsReadIntoSomething(t *testing.T) {
	packed, _ := pack(State{"v": 1})
	for _, into := range []any{nil, State{}, struct{ V int64 }{}, (*struct{ V int64 })(nil)} {
		if _, err := (&Key{state: packed, key: []byte{7}}).State(into); err == nil || !strings.Contains(err.Error(), "the state of 7 cannot be read") {
			t.Errorf("into %#v: %v", into, err)
		}
	}
}

func TestEveryAnyWithinAStructIsReadAsInAState(t *testing.T) {
	given := State{"Deep": 5, "Price": 5, "Prices": []any{200, 0.5, nil}, "More": State{"x": 7}, "By": State{"x": 60_000},
		"Of": State{"x": []any{1}}, "Next": State{"Price": 5, "Number": 1}}
	packed, err := pack(given)
	var got holding
	if err == nil {
		err = unpack(packed, &got)
	}
	want := holding{embedded{int64(5)}, int64(5), []any{int64(200), 0.5, nil}, State{"x": int64(7)},
		State{"x": int64(60_000)}, map[string][]any{"x": {int64(1)}}, &holding{Price: int64(5), Number: 1}, 0}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nexpected %+v: %v", got, want, err)
	}
}

func TestMapsWithOtherKeysThanTextAreRefusedUnlessTheirTypeHasSuchKeys(t *testing.T) {
	for _, packed := range []string{"81a16d82c001c4016b02", "81a16d81c001", "81a16d81c4016b02", "81a16d810102", "81a16d81910102"} {
		data, _ := hex.DecodeString(packed)
		state := State{}
		if err := unpack(data, &state); err == nil || !strings.Contains(err.Error(), `"m": `) {
			t.Errorf("%s became %v: %v", packed, state, err)
		}
		texts := struct {
			M map[string]int64 `msgpack:"m"`
		}{}
		if err := unpack(data, &texts); err == nil {
			t.Errorf("%s became %v", packed, texts)
		}
	}
	type numbered struct{ M map[int64]string }
	var got numbered
	packed, err := pack(numbered{map[int64]string{1: "a"}})
	if err == nil {
		err = unpack(packed, &got)
	}
	if err != nil || got.M[1] != "a" {
		t.Error(got, err)
	}
}

func TestAStateThatCannotBeReadIsRefusedByItsKey(t *testing.T) {
	type unset struct {
		Amount *Decimal `msgpack:"amount"`
	}
	none := Decimal("")
	for value, why := range map[any]string{
		&unset{&none}: `"amount": a Decimal of ""`,
		&struct{ Names []string }{[]string{"a", garbled}}:                              `"Names": [1]: text that is not UTF-8`,
		&struct{ By map[string]int64 }{map[string]int64{garbled: 1}}:                   "text that is not UTF-8",
		&struct{ Of Decimal }{"twelve"}:                                                `"Of": a Decimal of "twelve"`,
		&struct{ Of any }{map[any]int64{nil: 1}}:                                       "a key that is no text",
		&struct{ At time.Time }{time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}:         `"At": a time in the year 10000`,
		&struct{ At *LocalTime }{&LocalTime{time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)}}: `"At": a time in the year 0`,
		&struct{ On *Date }{&Date{time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}}:      `"On": a time in the year 10000`,
		&map[int64]int64{1: 1}:                                                         "a key that is no text",
	} {
		key := &Key{Context: &Context{}, key: []byte{7}}
		if err := key.SetState(value); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "the state of 7") {
			t.Errorf("%v: expected %q, got %v", value, why, err)
		}
		if key.changed {
			t.Errorf("%v is stored", value)
		}
	}
	for _, packed := range []string{"81a176c703034e614e", "81a176c709032d496e66696e697479", "81a176d60330452d39"} {
		data, _ := hex.DecodeString(packed)
		state := State{}
		if err := unpack(data, &state); err != nil {
			t.Errorf("%s: %v", packed, err)
		} else if again, err := pack(state); err != nil || hex.EncodeToString(again) != packed {
			t.Errorf("%s became %x: %v", packed, again, err)
		}
	}
}

func TestAnUnchangedStateHasUnchangedBytes(t *testing.T) {
	many := struct {
		Z, A map[string]int64
		Deep any
	}{map[string]int64{}, map[string]int64{}, map[any]any{}}
	for i := range 40 {
		many.Z[fmt.Sprint(i)], many.A[strings.Repeat("x", i)] = int64(i), int64(i)
		many.Deep.(map[any]any)[fmt.Sprint(i)] = map[string]bool{"b": true, "a": false}
	}
	first, err := pack(many)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if again, err := pack(many); err != nil || string(again) != string(first) {
			t.Fatalf("%x is not %x: %v", again, first, err)
		}
	}
	state := State{}
	if err := unpack(first, &state); err != nil || state["Z"].(State)["39"] != int64(39) || len(state["A"].(State)) != 40 {
		t.Error(state, err)
	}
}

func TestAKeyIsOfTheTypesOfItsColumn(t *testing.T) {
	for packed, want := range map[string]any{
		"cf0000000100000000": int64(1) << 32, "d602000b4681": leapDay, "92a161d602000b4681": []any{"a", leapDay},
	} {
		data, _ := hex.DecodeString(packed)
		if got := (&Key{key: data}).Key(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v (%T)", packed, got, got)
		}
	}
}

func TestTimersAndExpirationsBeyondTheYearsOfPythonAreRefused(t *testing.T) {
	for _, at := range []time.Time{time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC)} {
		for what, set := range map[string]func(*Key, time.Time){"timer": (*Key).Timer, "expiration": (*Key).Expire} {
			func() {
				defer func() {
					if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "the "+what+" lies in the year") {
						t.Errorf("%s at %v: %v", what, at, p)
					}
				}()
				set(&Key{timers: &[]timer{}}, at)
			}()
		}
	}
}

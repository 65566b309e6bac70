package operator

// Lists, structs and maps as Go values.

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// Nested is a list, struct or map: the value in a row of an Arrow array. It is valid until the method returns, and may be emitted.
type Nested struct {
	Array arrow.Array
	Row   int
}

// Go returns the value in Go's own types, which may be kept: a list as []any, a struct as map[string]any, a map as map[any]any, and
// likewise their elements; binary keys are strings. It panics for a map that has a key twice, which Go's maps cannot hold.
func (n Nested) Go() any {
	switch a := n.Array.(type) {
	case *array.Map:
		first, last := a.ValueOffsets(n.Row)
		entries := make(map[any]any, last-first)
		for i := int(first); i < int(last); i++ {
			key := goValue(a.Keys(), i)
			if data, binary := key.([]byte); binary {
				key = string(data)
			}
			if _, twice := entries[key]; twice {
				panic(fmt.Errorf("a map has the key %v twice, which no map in Go has: read the Array of operator.Nested", key))
			}
			entries[key] = goValue(a.Items(), i)
		}
		return entries
	case array.ListLike:
		first, last := a.ValueOffsets(n.Row)
		values := make([]any, 0, last-first)
		for i := int(first); i < int(last); i++ {
			values = append(values, goValue(a.ListValues(), i))
		}
		return values
	case *array.Struct:
		fields := make(map[string]any, a.NumField())
		for i, f := range a.DataType().(*arrow.StructType).Fields() {
			fields[f.Name] = goValue(a.Field(i), n.Row)
		}
		return fields
	}
	return n
}

func goValue(a arrow.Array, row int) any {
	if nested, ok := valueOf(a, row).(Nested); ok {
		return nested.Go()
	}
	return valueOf(a, row)
}

// appendGo appends a Go slice, array or map to a builder of lists, structs or maps; false if the value is none of these.
func appendGo(b array.Builder, value any) (bool, error) {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		if b, ok := b.(array.ListLikeBuilder); ok {
			if _, isMap := b.(*array.MapBuilder); !isMap {
				return true, appendList(b, v)
			}
		}
	case reflect.Map:
		switch b := b.(type) {
		case *array.StructBuilder:
			return true, appendStruct(b, v)
		case *array.MapBuilder:
			return true, appendMap(b, v)
		}
	default:
		return false, nil
	}
	return true, errForm
}

func appendList(b array.ListLikeBuilder, v reflect.Value) error {
	if t, ok := b.Type().(*arrow.FixedSizeListType); ok && int(t.Len()) != v.Len() {
		return fmt.Errorf("expected %d elements", t.Len())
	}
	b.Append(true)
	for i := range v.Len() {
		if err := appendValue(b.ValueBuilder(), v.Index(i).Interface()); err != nil {
			return err
		}
	}
	return nil
}

func appendStruct(b *array.StructBuilder, v reflect.Value) error {
	if v.Type().Key().Kind() != reflect.String {
		return errors.New("expected a map with the fields as its keys")
	}
	fields := b.Type().(*arrow.StructType).Fields()
	if len(fields) != v.Len() {
		return fmt.Errorf("expected %d fields, got %d", len(fields), v.Len())
	}
	b.Append(true)
	for i, f := range fields {
		field := v.MapIndex(reflect.ValueOf(f.Name).Convert(v.Type().Key()))
		if !field.IsValid() {
			return fmt.Errorf("it lacks the field %q", f.Name)
		}
		if err := appendValue(b.FieldBuilder(i), field.Interface()); err != nil {
			return err
		}
	}
	return nil
}

// appendMap appends the entries in the order of their keys, since Go's maps have no order.
func appendMap(b *array.MapBuilder, v reflect.Value) error {
	type entry struct{ key, value reflect.Value }
	entries := make([]entry, 0, v.Len())
	for each := v.MapRange(); each.Next(); {
		entries = append(entries, entry{each.Key(), each.Value()})
	}
	slices.SortFunc(entries, func(one, other entry) int { return compared(one.key.Interface(), other.key.Interface()) })
	b.Append(true)
	for _, e := range entries {
		if err := appendValue(b.KeyBuilder(), e.key.Interface()); err != nil {
			return err
		}
		if err := appendValue(b.ItemBuilder(), e.value.Interface()); err != nil {
			return err
		}
	}
	return nil
}

func compared(one, other any) int {
	a, b := reflect.ValueOf(one), reflect.ValueOf(other)
	switch {
	case a.Kind() == reflect.String && b.Kind() == reflect.String:
		return bytes.Compare([]byte(a.String()), []byte(b.String()))
	case a.CanInt() && b.CanInt():
		return cmp.Compare(a.Int(), b.Int())
	case a.CanFloat() && b.CanFloat():
		return cmp.Compare(a.Float(), b.Float())
	}
	return cmp.Compare(fmt.Sprint(one), fmt.Sprint(other))
}

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
// likewise their elements; binary keys are strings.
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
	return true, errors.New("it is of another form")
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
	keys := v.MapKeys()
	slices.SortFunc(keys, func(one, other reflect.Value) int { return compared(one.Interface(), other.Interface()) })
	b.Append(true)
	for _, key := range keys {
		if err := appendValue(b.KeyBuilder(), key.Interface()); err != nil {
			return err
		}
		if err := appendValue(b.ItemBuilder(), v.MapIndex(key).Interface()); err != nil {
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

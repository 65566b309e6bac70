package operator

// The capabilities of an operator: the methods that it has.

import (
	"fmt"
	"reflect"
	"sort"
	"strings"
)

func capabilitiesOf(op any) ([]string, error) {
	if err := requireMethods(op); err != nil {
		return nil, err
	}
	found := []string{"rehearse"}
	switch op.(type) {
	case Keyed, KeyedBatches:
		found = append(found, "keyed")
	}
	if _, ok := op.(Timed); ok {
		found = append(found, "timers")
	}
	if _, ok := op.(Migrating); ok {
		found = append(found, "migrate")
	}
	return found, nil
}

func has[T any](op any) bool { _, ok := op.(T); return ok }

// requireMethods refuses an operator without a method to process events, with several, or with an optional method that would not be called.
func requireMethods(op any) error {
	var processing []string
	for name, there := range map[string]bool{
		"ProcessBatch": has[Batches](op), "Process": has[Events](op), "ProcessKeyed": has[Keyed](op), "ProcessKeys": has[KeyedBatches](op),
	} {
		if there {
			processing = append(processing, name)
		}
	}
	switch len(processing) {
	case 0:
		return fmt.Errorf("a %T has none of ProcessBatch, Process, ProcessKeyed and ProcessKeys with the types of package operator", op)
	case 1:
	default:
		sort.Strings(processing)
		return fmt.Errorf("a %T has %s: expected one of them", op, strings.Join(processing, " and "))
	}
	pointer := reflect.ValueOf(op)
	if pointer.Kind() != reflect.Pointer {
		pointer = reflect.New(pointer.Type())
	}
	// The names are constants, so that the linker can drop the methods that nobody calls.
	for _, optional := range []struct {
		name, form        string
		called, byPointer bool
		method            reflect.Value
	}{
		{"Open", "(*operator.Context) error", has[Opener](op), has[Opener](pointer.Interface()), pointer.MethodByName("Open")},
		{"Close", "() error", has[Closer](op), has[Closer](pointer.Interface()), pointer.MethodByName("Close")},
		{"OnTimer", "(time.Time, *operator.Key) error", has[Timed](op), has[Timed](pointer.Interface()), pointer.MethodByName("OnTimer")},
		{"Migrate", "(operator.State, int) (operator.State, error)", has[Migrating](op), has[Migrating](pointer.Interface()),
			pointer.MethodByName("Migrate")},
	} {
		if !optional.method.IsValid() || optional.called {
			continue
		}
		if optional.byPointer {
			return fmt.Errorf("%s of %T has a pointer as its receiver and would not be called: pass a pointer to operator.Run", optional.name, op)
		}
		got := strings.TrimPrefix(optional.method.Type().String(), "func")
		return fmt.Errorf("%T has %s%s, which would not be called: expected %s%s", op, optional.name, got, optional.name, optional.form)
	}
	return nil
}

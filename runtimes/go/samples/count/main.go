// Count answers each event with the number of events of its key so far.
package main

import "udo.dev/operator"

type count struct{}

// The state of a key, as any language may have left it: {"n": 3}.
type state struct {
	N int64 `msgpack:"n"`
}

func (count) ProcessKeyed(event operator.Event, ctx *operator.Key) error {
	var s state
	if _, err := ctx.State(&s); err != nil {
		return err
	}
	s.N++
	ctx.Emit(operator.Row{"id": event.Value("id"), "k": event.Value("k"), "n": s.N})
	return ctx.SetState(s)
}

func main() { operator.Run(count{}) }

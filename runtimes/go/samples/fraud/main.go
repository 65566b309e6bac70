// Fraud flags card payments of an unusual amount, event by event.
package main

import "udo.dev/operator"

const limit = 100.0

type fraud struct{}

func (fraud) Process(event operator.Event, ctx *operator.Context) error {
	ctx.Emit(operator.Row{"id": event.Value("id"), "flagged": event.Float("value") > limit})
	return nil
}

func main() { operator.Run(fraud{}) }

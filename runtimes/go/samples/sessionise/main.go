// Sessionise answers with the number of events of a key's session, once no event of it has come for half a minute of event time.
package main

import (
	"time"

	"udo.dev/operator"
)

const gap = 30 * time.Second

type sessionise struct{}

type state struct {
	N    int64     `msgpack:"n"`
	Last time.Time `msgpack:"last"`
}

func (sessionise) ProcessKeyed(event operator.Event, ctx *operator.Key) error {
	var s state
	if _, err := ctx.State(&s); err != nil {
		return err
	}
	s.N++
	if at := event.Time("t"); at.After(s.Last) {
		s.Last = at
		ctx.Timer(at.Add(gap))
	}
	return ctx.SetState(s)
}

func (sessionise) OnTimer(at time.Time, ctx *operator.Key) error {
	var s state
	if there, err := ctx.State(&s); err != nil || !there || at.Before(s.Last.Add(gap)) {
		return err // an event has come since
	}
	ctx.Emit(operator.Row{"k": ctx.Key(), "n": s.N, "ended": s.Last})
	ctx.Clear()
	return nil
}

func main() { operator.Run(sessionise{}) }

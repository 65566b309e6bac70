// Sessionise answers with the number of events in a key's session, once the key has had none for half a minute of event time.
package main

import (
	"time"

	"udo.dev/operator"
)

const gap = 30 * time.Second

type sessionise struct{}

// The state of a key, as any language may have left it: how many events, and the time of the latest, a LocalTime if the column has no zone.
type state struct {
	N    int64 `msgpack:"n"`
	Last any   `msgpack:"last"`
}

func (s state) last() time.Time {
	switch at := s.Last.(type) {
	case time.Time:
		return at
	case operator.LocalTime:
		return at.Time
	}
	return time.Time{}
}

func (sessionise) ProcessKeyed(event operator.Event, ctx *operator.Key) error {
	var s state
	if _, err := ctx.State(&s); err != nil {
		return err
	}
	s.N++
	if at := event.Time("t"); at.After(s.last()) {
		s.Last = event.Value("t")
		ctx.Timer(at.Add(gap))
	}
	return ctx.SetState(s)
}

func (sessionise) OnTimer(at time.Time, ctx *operator.Key) error {
	var s state
	if there, err := ctx.State(&s); err != nil || !there || at.Before(s.last().Add(gap)) {
		return err // an event has come since
	}
	ctx.Emit(operator.Row{"k": ctx.Key(), "n": s.N, "ended": s.Last})
	ctx.Clear()
	return nil
}

func main() { operator.Run(sessionise{}) }

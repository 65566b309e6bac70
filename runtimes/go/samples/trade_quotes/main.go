// Trade_quotes joins two inputs by key and time: each trade with the quote that was in force when it was made.
package main

import (
	"sort"
	"time"

	"udo.dev/operator"
)

type tradeQuotes struct{}

// The state of a symbol, as any language may have left it: waiting trades, as [at, price], and quotes that are still needed, by time,
// as [at, bid, ask].
type state struct {
	Trades []trade `msgpack:"trades"`
	Quotes []quote `msgpack:"quotes"`
}

type trade struct {
	_msgpack struct{} `msgpack:",as_array"`
	At       time.Time
	Price    any
}

type quote struct {
	_msgpack struct{} `msgpack:",as_array"`
	At       time.Time
	Bid, Ask any
}

func (tradeQuotes) ProcessKeyed(event operator.Event, ctx *operator.Key) error {
	s := state{Trades: []trade{}, Quotes: []quote{}} // not nil, which other languages read as null
	if _, err := ctx.State(&s); err != nil {
		return err
	}
	at := event.Time("at")
	if event.Text("input") == "quotes" {
		s.Quotes = append(s.Quotes, quote{At: at, Bid: event.Value("bid"), Ask: event.Value("ask")})
		sort.SliceStable(s.Quotes, func(i, j int) bool { return s.Quotes[i].At.Before(s.Quotes[j].At) })
	} else {
		s.Trades = append(s.Trades, trade{At: at, Price: event.Value("price")})
		ctx.Timer(at)
	}
	return ctx.SetState(s)
}

// OnTimer is called when event time has passed the trades of this moment in both inputs.
func (tradeQuotes) OnTimer(at time.Time, ctx *operator.Key) error {
	var s state
	if _, err := ctx.State(&s); err != nil {
		return err
	}
	later := sort.Search(len(s.Quotes), func(i int) bool { return s.Quotes[i].At.After(at) })
	before := max(later-1, 0)
	var inForce quote
	if later > 0 {
		inForce = s.Quotes[before]
	}
	waiting := []trade{}
	for _, t := range s.Trades {
		if t.At.After(at) {
			waiting = append(waiting, t)
		} else if t.At.Equal(at) {
			ctx.Emit(operator.Row{"symbol": ctx.Key(), "at": at, "price": t.Price, "bid": inForce.Bid, "ask": inForce.Ask})
		}
	}
	return ctx.SetState(state{waiting, append([]quote{}, s.Quotes[before:]...)})
}

func main() { operator.Run(tradeQuotes{}) }

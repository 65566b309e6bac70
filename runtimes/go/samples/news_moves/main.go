// News_moves looks for a pattern over two inputs: news, and within a minute the first trade whose price has moved by 2 % since the last one
// before it.
package main

import (
	"math"
	"time"

	"udo.dev/operator"
)

const (
	within = time.Minute
	move   = 0.02
)

type newsMoves struct{}

// The state of a symbol, as any language may have left it: waiting events, as [at, input, headline or price]; news that no large move has
// followed yet, as [at, headline, price before it]; the last price. There is no price before the first trade.
type state struct {
	Waiting []waiting `msgpack:"waiting"`
	News    []news    `msgpack:"news"`
	Price   *float64  `msgpack:"price"`
}

type waiting struct {
	_msgpack struct{} `msgpack:",as_array"`
	At       time.Time
	Input    string
	Said     any
}

type news struct {
	_msgpack struct{} `msgpack:",as_array"`
	At       time.Time
	Headline string
	Before   *float64
}

func (newsMoves) ProcessKeyed(event operator.Event, ctx *operator.Key) error {
	headline, price := event.Text("headline"), event.Float("price")
	if headline == "" && price == 0 {
		return nil // it carries no information
	}
	s := state{Waiting: []waiting{}, News: []news{}} // not nil, which other languages read as null
	if _, err := ctx.State(&s); err != nil {
		return err
	}
	w := waiting{At: event.Time("at"), Input: event.Text("input"), Said: price}
	if w.Input == "news" {
		w.Said = headline
	}
	s.Waiting = append(s.Waiting, w)
	ctx.Timer(w.At)
	return ctx.SetState(s)
}

// OnTimer processes the events of this moment: news first, then the trades, in order of arrival.
func (newsMoves) OnTimer(at time.Time, ctx *operator.Key) error {
	var s state
	if _, err := ctx.State(&s); err != nil {
		return err
	}
	later, open := []waiting{}, []news{}
	for _, n := range s.News {
		if at.Sub(n.At) <= within {
			open = append(open, n)
		}
	}
	var prices []float64
	for _, w := range s.Waiting {
		if w.At.After(at) {
			later = append(later, w)
		} else if price, trade := w.Said.(float64); trade {
			prices = append(prices, price)
		} else {
			open = append(open, news{At: at, Headline: w.Said.(string), Before: s.Price})
		}
	}
	for _, price := range prices {
		unmoved := []news{}
		for _, n := range open {
			if n.Before != nil && math.Abs(price-*n.Before) >= move**n.Before {
				change := (price - *n.Before) / *n.Before
				ctx.Emit(operator.Row{"symbol": ctx.Key(), "at": at, "headline": n.Headline, "change": change})
			} else {
				unmoved = append(unmoved, n)
			}
		}
		open, s.Price = unmoved, &price
	}
	return ctx.SetState(state{later, open, s.Price})
}

func main() { operator.Run(newsMoves{}) }

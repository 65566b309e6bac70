package operator

// Text for people: failures and log records.

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"unicode/utf8"

	"udo.dev/operator/internal/pb"
)

// The engine keeps about this much of a failure's message and trace. A whole message of the protocol has to be below 1 MiB.
const (
	mostMessage = 16_000
	mostTrace   = 32_000
)

// told returns text that can be sent, whatever an operator has put in it: its beginning, a note and its end, if it has more bytes.
func told(text string, most int) string {
	if len(text) > most {
		head, tail := most/2, len(text)-most/2
		for head > 0 && !utf8.RuneStart(text[head]) {
			head--
		}
		for tail < len(text) && !utf8.RuneStart(text[tail]) {
			tail++
		}
		text = fmt.Sprintf("%s … %d bytes cut … %s", text[:head], tail-head, text[tail:])
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// logs sends log records to the engine.
type logs struct {
	slog.Handler
	wire *wire
	with []slog.Attr
}

func (l *logs) Enabled(context.Context, slog.Level) bool { return true }
func (l *logs) WithGroup(string) slog.Handler            { return l }
func (l *logs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logs{wire: l.wire, with: append(append([]slog.Attr{}, l.with...), attrs...)}
}
func (l *logs) Handle(_ context.Context, r slog.Record) error {
	text := strings.Builder{}
	text.WriteString(r.Message)
	note := func(a slog.Attr) bool { fmt.Fprintf(&text, " %s=%v", a.Key, a.Value); return true }
	for _, a := range l.with {
		note(a)
	}
	r.Attrs(note)
	level := pb.Log_DEBUG
	switch {
	case r.Level >= slog.LevelError:
		level = pb.Log_ERROR
	case r.Level >= slog.LevelWarn:
		level = pb.Log_WARNING
	case r.Level >= slog.LevelInfo:
		level = pb.Log_INFO
	}
	return l.wire.send(&pb.Message{Kind: &pb.Message_Log{Log: &pb.Log{Level: level, Message: told(text.String(), mostMessage)}}})
}

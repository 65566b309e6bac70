package operator

// A check of a packed state for what the MessagePack library accepts and others do not: text that is not UTF-8, decimals that are not
// numbers, times that Python does not have, keys that the library would turn into text. It also sorts maps by their keys, since the library
// does so for a few types only.

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"
)

type packed struct {
	data     []byte
	at       int  // everything before this is checked
	depth    int  // the number of maps around
	written  bool // by this program, so that text, times and decimals may be wrong
	textKeys bool // no other keys at any depth
}

type entry struct{ key, whole []byte }

var (
	errCut    = errors.New("it is cut short")
	number    = regexp.MustCompile(`^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$`)
	notNumber = regexp.MustCompile(`^[+-]?(Infinity|s?NaN\d*)$`) // in Python only, and stored as it was
)

func (p *packed) whole() error {
	err := p.value()
	if err == nil && p.at < len(p.data) {
		err = fmt.Errorf("it has %d bytes behind its end", len(p.data)-p.at)
	}
	return err
}

func (p *packed) take(n int) ([]byte, error) {
	if n > len(p.data)-p.at {
		return nil, errCut
	}
	p.at += n
	return p.data[p.at-n : p.at], nil
}

func (p *packed) number(size int) (n int, err error) {
	data, err := p.take(size)
	for _, b := range data {
		n = n<<8 | int(b)
	}
	return n, err
}

// sized takes a number of that size, and then that many bytes.
func (p *packed) sized(size int) ([]byte, error) {
	n, err := p.number(size)
	if err != nil {
		return nil, err
	}
	return p.take(n)
}

func (p *packed) value() error {
	code, err := p.number(1)
	var n int
	switch {
	case err != nil || code < 0x80 || code >= 0xe0: // a small number
	case code <= 0x8f:
		return p.entries(code & 0x0f)
	case code <= 0x9f:
		return p.elements(code & 0x0f)
	case code <= 0xbf:
		return p.text(code & 0x1f)
	case code <= 0xc3: // nil, false, true
	case code <= 0xc6:
		_, err = p.sized(1 << (code - 0xc4))
	case code <= 0xc9:
		if n, err = p.number(1 << (code - 0xc7)); err == nil {
			return p.extension(n)
		}
	case code <= 0xcb:
		_, err = p.take(4 << (code - 0xca))
	case code <= 0xcf:
		_, err = p.take(1 << (code - 0xcc))
	case code <= 0xd3:
		_, err = p.take(1 << (code - 0xd0))
	case code <= 0xd8:
		return p.extension(1 << (code - 0xd4))
	case code <= 0xdb:
		if n, err = p.number(1 << (code - 0xd9)); err == nil {
			return p.text(n)
		}
	case code <= 0xdd:
		if n, err = p.number(2 << (code - 0xdc)); err == nil {
			return p.elements(n)
		}
	default:
		if n, err = p.number(2 << (code - 0xde)); err == nil {
			return p.entries(n)
		}
	}
	return err
}

func (p *packed) text(n int) error {
	text, err := p.take(n)
	if err == nil && p.written && !utf8.Valid(text) {
		err = fmt.Errorf("text that is not UTF-8, %.60q: do not cut text inside of a character, and store other bytes as []byte", text)
	}
	return err
}

func (p *packed) extension(n int) error {
	kind, err := p.number(1)
	if err != nil {
		return err
	}
	data, err := p.take(n)
	if err != nil || !p.written {
		return err
	}
	var at time.Time
	switch int8(kind) {
	case -1:
		at, err = zonedOf(data)
	case 1:
		var local LocalTime
		local, err = localOf(data)
		at = local.Time
	case 2:
		var day Date
		day, err = dayOf(data)
		at = day.Time
	case 3:
		if !number.Match(data) && !notNumber.Match(data) {
			err = fmt.Errorf("a Decimal of %.60q, which is no number: expected digits, as in \"-12.50\"", data)
		}
		return err
	default:
		return fmt.Errorf("extension %d of MessagePack: expected -1, 1, 2 or 3", int8(kind))
	}
	if year := at.Year(); err == nil && (year < 1 || year > 9999) {
		err = fmt.Errorf("a time in the year %d: expected the years 1 to 9999", year)
	}
	return err
}

func (p *packed) elements(n int) error {
	for i := range n {
		if err := p.value(); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return nil
}

func (p *packed) entries(n int) error {
	var found []entry
	first, ordered := p.at, true
	p.depth++
	for range n {
		from := p.at
		err := p.value()
		key := p.data[from:p.at]
		if err == nil {
			err = p.requireKey(key)
		}
		if err == nil {
			err = p.value()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", shown(key), err)
		}
		if p.written {
			found = append(found, entry{key, p.data[from:p.at]})
			last := len(found) - 1
			ordered = ordered && (last == 0 || byKey(found[last-1], found[last]) <= 0)
		}
	}
	p.depth--
	if !ordered {
		slices.SortStableFunc(found, byKey)
		inOrder := make([]byte, 0, p.at-first)
		for _, e := range found {
			inOrder = append(inOrder, e.whole...)
		}
		copy(p.data[first:], inOrder)
	}
	return nil
}

// requireKey refuses keys that could not be read again unchanged. Numbers as keys are for Python, and for maps of such a type in Go.
func (p *packed) requireKey(key []byte) error {
	switch code := key[0]; {
	case code >= 0xa0 && code <= 0xbf, code >= 0xd9 && code <= 0xdb:
		return nil
	case p.textKeys || p.depth == 1, code >= 0x80 && code <= 0x9f, code == 0xc0, code >= 0xc4 && code <= 0xc9, code >= 0xd4 && code <= 0xdf:
		return errors.New("a key that is no text: expected maps with text as keys, which all languages have")
	}
	return nil
}

// content returns the text of a key, or the whole key if it is not text.
func content(key []byte) []byte {
	switch code := key[0]; {
	case code >= 0xa0 && code <= 0xbf:
		return key[1:]
	case code >= 0xd9 && code <= 0xdb:
		return key[1+1<<(code-0xd9):]
	}
	return key
}

func byKey(one, other entry) int { return bytes.Compare(content(one.key), content(other.key)) }

func shown(key []byte) string {
	if len(key) == 0 {
		return "a key"
	}
	return fmt.Sprintf("%.60q", content(key))
}

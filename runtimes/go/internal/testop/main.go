// Testop has the operators of the platform's own tests, {a: int64} -> {b: int64}; its argument names one.
package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"udo.dev/operator"
)

const (
	held   = 50  // hangs at this event
	raises = 101 // returns an error
	panics = 102 // panics
	fills  = 103 // takes 640 MiB of memory
	forks  = 104 // starts 80 processes
)

type plus struct{}

func (plus) Process(event operator.Event, ctx *operator.Context) error {
	switch event.Int("a") {
	case held:
		ctx.Log.Info("holding")
		time.Sleep(time.Hour)
	case raises:
		return errors.New("101 is not liked")
	case panics:
		_ = event.Int("nowhere")
	case fills:
		var kept [40][]byte
		for n := range kept {
			kept[n] = []byte(strings.Repeat("x", 16<<20))
		}
		time.Sleep(3 * time.Second) // long enough to be noticed
		ctx.Log.Info("filled", "first", kept[0][0])
	case forks:
		for range 80 {
			if err := exec.Command("sleep", "20").Start(); err != nil {
				return err
			}
		}
		time.Sleep(3 * time.Second)
	}
	ctx.Emit(operator.Row{"b": event.Int("a") + 1})
	return nil
}

type count struct{}

type state struct {
	N int64 `msgpack:"n"`
}

func (count) ProcessKeyed(event operator.Event, ctx *operator.Key) error {
	var s state
	if _, err := ctx.State(&s); err != nil {
		return err
	}
	s.N++
	if event.Int("a") == held && s.N == 2 {
		ctx.Log.Info("holding")
		for _, err := os.Stat(os.Getenv("GO_ON")); err != nil; _, err = os.Stat(os.Getenv("GO_ON")) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	ctx.Emit(operator.Row{"b": s.N})
	return ctx.SetState(s)
}

// Spy answers the sum of what it can see of its engine: 1 for a path, 2 for a variable, 4 for another process; 0 if it sees nothing.
type spy struct{}

func (spy) Process(event operator.Event, ctx *operator.Context) error {
	found := int64(0)
	if _, err := os.Stat(os.Getenv("LOOK_FOR")); err == nil {
		found |= 1
	}
	for _, name := range []string{"UDO_QUEUE_SOCKET", "UDO_PASSWORD_FILE", "UDO_PYTHONPATH"} {
		if os.Getenv(name) != "" {
			found |= 2
		}
	}
	if others, err := os.ReadDir("/proc"); err == nil {
		processes := 0
		for _, entry := range others {
			if c := entry.Name()[0]; c >= '0' && c <= '9' {
				processes++
			}
		}
		if processes > 2 { // the sandbox's first process, and this one
			found |= 4
		}
	}
	ctx.Emit(operator.Row{"b": found})
	return nil
}

// Files answers with all files that it sees, except the kernel's virtual ones.
type files struct{}

func (files) Process(event operator.Event, ctx *operator.Context) error {
	var found []string
	err := filepath.WalkDir("/", func(path string, entry fs.DirEntry, err error) error {
		if path == "/proc" || path == "/sys" || path == "/dev" {
			return filepath.SkipDir
		}
		if err == nil && !entry.IsDir() {
			found = append(found, path)
		}
		return nil
	})
	ctx.Emit(operator.Row{"b": strings.Join(found, "\n")})
	return err
}

// Cut answers with text, which is cut inside a character at event 1; at 2 it fails with such text, which is also long.
type cut struct{}

func (cut) Process(event operator.Event, ctx *operator.Context) error {
	switch event.Int("a") {
	case 1:
		ctx.Emit(operator.Row{"b": "Zürich"[:2]})
	case 2:
		ctx.Log.Info("Zürich"[:2] + strings.Repeat("x", 2<<20))
		return errors.New("cut: " + "Zürich"[:2] + strings.Repeat("x", 2<<20))
	}
	ctx.Emit(operator.Row{"b": "Zürich"})
	return nil
}

func main() {
	operator.Run(map[string]any{"plus": plus{}, "count": count{}, "spy": spy{}, "files": files{}, "cut": cut{}}[os.Args[1]])
}

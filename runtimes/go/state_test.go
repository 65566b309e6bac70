package operator

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

// Each golden value, read into an `any` and written again, has the same bytes.
func TestGoldenStatesAreReadAndWrittenAgain(t *testing.T) {
	data, err := os.ReadFile("../conformance/state.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden []struct{ Name, Packed string }
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	for _, g := range golden {
		packed, _ := hex.DecodeString(g.Packed)
		state := State{}
		if err := unpack(packed, &state); err != nil {
			t.Errorf("%s: %v", g.Name, err)
			continue
		}
		again, err := pack(state)
		if err != nil || hex.EncodeToString(again) != g.Packed {
			t.Errorf("%s: %s became %x (%T): %v", g.Name, g.Packed, again, state["v"], err)
		}
	}
	if len(golden) == 0 {
		t.Error("no golden values")
	}
}

// Forward answers every event unchanged.
package main

import (
	"github.com/apache/arrow-go/v18/arrow"

	"udo.dev/operator"
)

type forward struct{}

func (forward) ProcessBatch(batch arrow.RecordBatch, _ *operator.Context) (arrow.RecordBatch, error) {
	return batch, nil
}

func main() { operator.Run(forward{}) }

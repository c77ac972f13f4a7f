package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// The committed chart shows the current default policy.
func TestChartIsUpToDate(t *testing.T) {
	var want bytes.Buffer
	kit.OK(t, write(&want))
	got, err := os.ReadFile("../../docs/img/retry-policy.svg")
	kit.OK(t, err)
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("docs/img/retry-policy.svg is out of date: run make charts")
	}
}

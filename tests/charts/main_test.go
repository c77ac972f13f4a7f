package main

import (
	"bytes"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// The committed chart shows the current default policy.
func TestChartIsUpToDate(t *testing.T) {
	var want bytes.Buffer
	kit.OK(t, write(&want))
	got := kit.ReadFile(t, "../../docs/img/retry-policy.svg")
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("docs/img/retry-policy.svg is out of date: run make charts")
	}
}

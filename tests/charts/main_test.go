package main

import (
	"bytes"
	"os"
	"testing"
)

// The committed chart shows the current default policy.
func TestChartIsUpToDate(t *testing.T) {
	var want bytes.Buffer
	if err := write(&want); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/img/retry-policy.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("docs/img/retry-policy.svg is out of date: run make charts")
	}
}

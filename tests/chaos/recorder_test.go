package main

import (
	"strconv"
	"testing"
)

func TestRecorderFindsMessagesOutOfOrder(t *testing.T) {
	for _, c := range []struct {
		name       string
		numbers    []int
		inversions int
		copies     int64
	}{
		{"in order", []int{1, 2, 3}, 0, 0},
		{"copies", []int{1, 1, 2, 1, 2, 3}, 0, 3},
		{"one overtakes", []int{1, 3, 2, 4}, 1, 1},
		{"the first is late", []int{2, 1}, 1, 1},
	} {
		r := &recorder{last: make(map[string]int64)}
		for _, n := range c.numbers {
			r.note("id", "key", strconv.Itoa(n))
			r.note("id", "", "") // without a key there is no order
		}
		inversions, seen, copies := r.found()
		if len(inversions) != c.inversions || copies != c.copies || seen != int64(2*len(c.numbers)) {
			t.Errorf("%s: %v, %d seen, %d copies", c.name, inversions, seen, copies)
		}
	}
}

package reconcile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/google/uuid"
)

const (
	minuteMillis = int64(time.Minute / time.Millisecond)

	noTime = int64(-1)

	lastMinute = (1<<48 - 1) / minuteMillis

	// A sender divides the ids of a minute into widest parts, and those without a time into
	// widestNoTime. Then it merges parts until each has about partIDs ids, or about mostParts are
	// left.
	widest       = 1 << 6
	widestNoTime = 1 << 16
	partIDs      = 512
	mostParts    = 20_000
)

// key is the place of an id in a digest.
type key struct {
	minute int64  // minutes since 1970, or noTime
	hash   uint64 // its first bits choose the part of the minute
	sum    uint64 // what the id adds to the checksum of its part
}

func keyOf(id []byte) key {
	hash := sha256.Sum256(id)
	k := key{noTime, binary.BigEndian.Uint64(hash[:8]), binary.BigEndian.Uint64(hash[8:16])}
	if ms, ok := timeOf(id); ok {
		k.minute = ms / minuteMillis
	}
	return k
}

// part returns the part of the id in a minute of n parts, a power of two.
func (k key) part(n int) int { return int(k.hash >> (65 - bits.Len(uint(n)))) }

// Only UUIDs of version 7 in their usual spelling begin with a time.
func timeOf(id []byte) (ms int64, ok bool) {
	const version = 14 // the position of the version in the text
	if len(id) != 36 || id[version] != '7' || bytes.ContainsAny(id, "ABCDEF") {
		return 0, false
	}
	u, err := uuid.ParseBytes(id)
	return int64(binary.BigEndian.Uint64(u[:8]) >> 16), err == nil
}

// window is the compared period, in whole minutes, of times in ids, or else of rows.
type window struct{ from, until time.Time }

// in says whether the time of the row is in the window.
func (w window) has(k key, in bool) bool {
	if k.minute == noTime {
		return in
	}
	return w.contains(k.minute * minuteMillis)
}

func (w window) contains(ms int64) bool { return ms >= w.from.UnixMilli() && ms < w.until.UnixMilli() }

type digest map[int64]*cell

// A checksum is the total of its ids' sums, so ids come in any order, and parts can merge.
type cell struct {
	n    int // number of ids; the other side does not get it
	sums []uint64
}

func (d digest) add(k key, parts int) {
	c := d[k.minute]
	if c == nil {
		c = &cell{0, make([]uint64, parts)}
		d[k.minute] = c
	}
	c.n++
	c.sums[k.part(len(c.sums))] += k.sum
}

// The hour of ids without a time is noTime.
func (d digest) hours() map[int64]int {
	n := map[int64]int{}
	for minute, c := range d {
		if minute != noTime {
			minute /= 60
		}
		n[minute] += c.n
	}
	return n
}

func (d digest) fold() {
	total := 0
	for _, c := range d {
		total += c.n
	}
	for _, c := range d {
		parts := 1 << bits.Len(uint(c.n/max(partIDs, total/mostParts)))
		for len(c.sums) > parts {
			half := len(c.sums) / 2
			for i := range half {
				c.sums[i] = c.sums[2*i] + c.sums[2*i+1]
			}
			c.sums = c.sums[:half]
		}
	}
}

func (d digest) encode() map[int64][]byte {
	all := map[int64][]byte{}
	for minute, c := range d {
		all[minute], _ = binary.Append(nil, binary.LittleEndian, c.sums) // cannot fail
	}
	return all
}

func decodeDigest(all map[int64][]byte) (digest, error) {
	d := digest{}
	for minute, b := range all {
		c := &cell{0, make([]uint64, len(b)/8)}
		if _, err := binary.Decode(b, binary.LittleEndian, c.sums); err != nil || len(b)%8 != 0 || !possible(minute, len(c.sums)) {
			return nil, fmt.Errorf("the checksums of minute %d are damaged: %w", minute, ErrFile)
		}
		d[minute] = c
	}
	return d, nil
}

func possible(minute int64, n int) bool {
	return minute >= noTime && minute <= lastMinute && n <= widestNoTime && bits.OnesCount(uint(n)) == 1
}

// differing has a digit for each part of a minute, which is 1 if the part differs.
type differing map[int64]string

// Each minute of theirs must also be in ours.
func compare(ours, theirs digest) differing {
	d := differing{}
	for minute, c := range ours {
		t, digits := theirs[minute], bytes.Repeat([]byte{'0'}, len(c.sums))
		for i, sum := range c.sums {
			if t == nil || t.sums[i] != sum {
				digits[i] = '1'
			}
		}
		if bytes.Contains(digits, []byte{'1'}) {
			d[minute] = string(digits)
		}
	}
	return d
}

func (d differing) has(k key) bool {
	digits := d[k.minute]
	return digits != "" && digits[k.part(len(digits))] == '1'
}

// minutes returns at most 50 ranges, without their second minute, that contain all minutes of d, or
// nil for ids without a time, which can have any text.
func (d differing) minutes() (ranges [][2]int64) {
	for _, minute := range slices.Sorted(maps.Keys(d)) {
		if minute == noTime {
			return nil
		}
		if last := len(ranges) - 1; last >= 0 && minute == ranges[last][1] {
			ranges[last][1]++
		} else {
			ranges = append(ranges, [2]int64{minute, minute + 1})
		}
	}
	if n := len(ranges); n > 50 {
		return [][2]int64{{ranges[0][0], ranges[n-1][1]}}
	}
	return ranges
}

package reconcile

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"
)

// cellWidth is the width of a cell, one minute, in milliseconds. A cell contains the
// ids that begin with a time of the same minute. Ids are compared cell by cell, because
// messages that are lost together were usually sent at about the same time.
const cellWidth = int64(time.Minute / time.Millisecond)

// noTime is the cell of all ids that do not begin with a time.
const noTime = int64(-1)

// key is the position of an id in a tree.
type key struct {
	cell int64  // minutes since 1970, or noTime
	path uint64 // hash of the id; its bits, from the highest one on, choose the branches of the tree
	sum  uint64 // the id's part of the checksum of its branch
}

func keyOf(id []byte) key {
	hash := sha256.Sum256(id)
	k := key{noTime, binary.BigEndian.Uint64(hash[:8]), binary.BigEndian.Uint64(hash[8:16])}
	if ms, ok := timeOf(id); ok {
		k.cell = ms / cellWidth
	}
	return k
}

// timeOf returns the time at the beginning of an id, in milliseconds, and whether the
// id begins with a time. Only UUIDs of version 7 in their usual spelling begin with a
// time.
func timeOf(id []byte) (ms int64, ok bool) {
	const version = 14 // the position of the version in the text
	if len(id) != 36 || id[version] != '7' {
		return 0, false
	}
	if _, ok := packed(id); !ok {
		return 0, false
	}
	var digits [12]byte
	copy(digits[:], id[:8])
	copy(digits[8:], id[9:13])
	var bytes [8]byte
	if _, err := hex.Decode(bytes[2:], digits[:]); err != nil {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(bytes[:])), true
}

// packed returns the 16 bytes of a UUID that is written in lower case. It returns false
// if id is not such a UUID.
func packed(id []byte) (bytes [16]byte, ok bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return bytes, false
	}
	n := 0
	for i := 0; i < len(id); {
		if id[i] == '-' {
			i++
			continue
		}
		high, low := digit(id[i]), digit(id[i+1])
		if high > 15 || low > 15 {
			return bytes, false
		}
		bytes[n] = high<<4 | low
		n++
		i += 2
	}
	return bytes, true
}

// digit returns the value of a lower-case hexadecimal digit, or 255 for any other byte.
func digit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

// unpacked returns a UUID as text.
func unpacked(b [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// firstID returns a string that sorts before all ids of the cell: the lowest possible
// beginning of such an id.
func firstID(cell int64) string {
	digits := fmt.Sprintf("%012x", max(0, cell)*cellWidth)
	return digits[:8] + "-" + digits[8:]
}

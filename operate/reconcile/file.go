package reconcile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrFile means that a file cannot be used: it is damaged, or belongs to another version of this
// library, the other side, or another comparison.
var ErrFile = errors.New("the file cannot be used")

const (
	fileFormat  = "watermill-once reconcile"
	fileVersion = 1
	mostBytes   = 256 << 20

	questionKind = "question"
	answerKind   = "answer"
)

// heading is the first line of a file, and the question or answer the second, as JSON. Neither side
// stores data between two files, so each step can be repeated.
type heading struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	SHA256  string `json:"sha256"` // of the kind and the body
}

func sumOf(kind string, body []byte) string {
	hash := sha256.New()
	_, _ = hash.Write([]byte(kind + "\n"))
	_, _ = hash.Write(body)
	return hex.EncodeToString(hash.Sum(nil))
}

// header describes the comparison in the question and its answer.
type header struct {
	Sender string        `json:"sender"` // fingerprint of the sender's tables
	Topics []string      `json:"topics"`
	From   time.Time     `json:"from"`
	Until  time.Time     `json:"until"`
	Sent   map[int64]int `json:"sent"` // number of ids of each hour since 1970; -1 for ids without a time
}

type questionBody struct {
	header

	Sums map[int64][]byte `json:"sums"` // see digest.encode
}

type answerBody struct {
	header

	AsOf      time.Time `json:"as_of"`
	Consumers []section `json:"consumers"`
}

// section is the part of an answer for one consumer.
type section struct {
	Consumer string        `json:"consumer"`
	From     time.Time     `json:"from"` // from this time on, the inbox contains all messages that the consumer has handled
	Known    map[int64]int `json:"known"`
	Parked   []Count       `json:"parked,omitempty"`
	Keys     bool          `json:"business_keys,omitempty"`
	Differ   differing     `json:"differ"`
	IDs      []entry       `json:"ids"` // all ids of the consumer in the parts that differ
}

type entry struct {
	ID    string `json:"id"`
	State string `json:"state"`
	At    int64  `json:"at"` // time at which the message was handled or parked, in Unix milliseconds
}

func encodeFile(kind string, content any) ([]byte, error) {
	body, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	body = append(body, '\n')
	head, err := json.Marshal(heading{fileFormat, fileVersion, kind, sumOf(kind, body)})
	if len(head)+len(body) >= mostBytes {
		return nil, fmt.Errorf("the file would be larger than %d MB: %w", mostBytes>>20, ErrTooDifferent)
	}
	return slices.Concat(head, []byte{'\n'}, body), err
}

func decodeFile(data []byte, kind string, content any) error {
	if len(data) > mostBytes {
		return fmt.Errorf("it is larger than %d MB: %w", mostBytes>>20, ErrFile)
	}
	head, body, _ := bytes.Cut(data, []byte{'\n'})
	var e heading
	if err := json.Unmarshal(head, &e); err != nil {
		return fmt.Errorf("it is damaged, copy it again: %w: %w", ErrFile, err)
	}
	switch {
	case e.Format != fileFormat:
		return fmt.Errorf("format %q is not %q: %w", e.Format, fileFormat, ErrFile)
	case e.Version != fileVersion:
		return fmt.Errorf("it has version %d, this library reads version %d: use the same release on both sides: %w",
			e.Version, fileVersion, ErrFile)
	case e.SHA256 != sumOf(e.Kind, body):
		return fmt.Errorf("it is damaged, copy it again: its check sum is wrong: %w", ErrFile)
	case e.Kind != kind && kind == answerKind:
		return fmt.Errorf("it is a %s: the side of the consumers answers it: %w", e.Kind, ErrFile)
	case e.Kind != kind:
		return fmt.Errorf("it is an %s: the side of the sender reads it: %w", e.Kind, ErrFile)
	}
	if err := json.Unmarshal(body, content); err != nil {
		return fmt.Errorf("%w: %w", ErrFile, err)
	}
	return nil
}

// An id in the wrong part would be compared with the wrong ids.
func (s section) check() error {
	for minute, digits := range s.Differ {
		if !possible(minute, len(digits)) {
			return fmt.Errorf("the parts of minute %d are damaged: %w", minute, ErrFile)
		}
	}
	for _, e := range s.IDs {
		if !s.Differ.has(keyOf([]byte(e.ID))) || !slices.Contains(states, e.State) {
			return fmt.Errorf("id %q is in no part that differs, or state %q does not exist: %w", e.ID, e.State, ErrFile)
		}
	}
	return nil
}

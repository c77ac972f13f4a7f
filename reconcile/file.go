package reconcile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Errors for files that cannot be used.
var (
	// ErrDamaged means that a file is incomplete or was modified.
	ErrDamaged = errors.New("the file is damaged")

	// ErrVersion means that another version of this library wrote the file.
	ErrVersion = errors.New("another version of this library wrote the file")

	// ErrWrongStep means that a file was passed to the wrong side, or belongs to another
	// comparison.
	ErrWrongStep = errors.New("the file does not belong here")
)

const (
	fileFormat  = "watermill-once reconcile"
	fileVersion = 1
	mostBytes   = 256 << 20
)

// Kinds of files: a question of the sender, or an answer of the consumers.
const (
	question = "question"
	answer   = "answer"
)

// A File is a question or an answer, which one side sends to the other. It contains
// message ids, names and times, but no payloads. It contains all data that the next
// step needs. Neither side stores data between two files, so each step can be repeated.
type File struct{ data fileData }

type fileData struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	Round   int    `json:"round"`

	WrittenAt time.Time `json:"written_at"`
	Sender    string    `json:"sender"`   // fingerprint of the sender's tables
	Receiver  string    `json:"receiver"` // fingerprint of the consumers' tables; "" in the first question
	Topics    []string  `json:"topics"`
	From      time.Time `json:"from"`
	Until     time.Time `json:"until"`
	Sent      hourly    `json:"sent"`
	Groups    []byte    `json:"groups,omitempty"` // groups of the first question, for all consumers

	Consumers []section `json:"consumers,omitempty"`

	Check string `json:"check"` // SHA-256 hash of the file without this field
}

// section is the part of a file for one consumer.
type section struct {
	Consumer string    `json:"consumer"`
	From     time.Time `json:"from"` // from this time on, the inbox contains all messages that the consumer has handled
	Handled  hourly    `json:"handled"`
	Parked   []Parked  `json:"parked,omitempty"`
	Keys     bool      `json:"business_keys,omitempty"` // whether the consumer has business keys, see dedup.Config.Key
	Groups   []byte    `json:"groups,omitempty"`
	Lists    []byte    `json:"lists,omitempty"`
	Done     bool      `json:"done"` // if true, Lists contains the differences; otherwise Groups contains smaller groups
}

// hourly contains the number of ids of each hour. The key is the hour since 1970, or -1
// for ids without a time.
type hourly map[int64]uint64

func (d fileData) check() string {
	d.Check = ""
	encoded, _ := json.Marshal(d) // cannot fail, because all its types can be encoded
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:])
}

// Name returns a short description of the file, such as "question 1 of the sender".
func (f *File) Name() string {
	if f.data.Kind == question {
		return fmt.Sprintf("question %d of the sender", f.data.Round)
	}
	return fmt.Sprintf("answer %d of the consumers", f.data.Round)
}

// Topics returns the topics that are compared.
func (f *File) Topics() []string { return slices.Clone(f.data.Topics) }

// From returns the beginning of the compared period.
func (f *File) From() time.Time { return f.data.From }

// Until returns the end of the compared period.
func (f *File) Until() time.Time { return f.data.Until }

// WriteTo writes the file to w as one line of JSON. It returns the number of bytes.
func (f *File) WriteTo(w io.Writer) (int64, error) {
	encoded, err := f.encode()
	if err != nil {
		return 0, err
	}
	n, err := w.Write(encoded)
	return int64(n), err
}

func (f *File) encode() ([]byte, error) {
	f.data.Check = f.data.check()
	encoded, err := json.Marshal(f.data)
	if err != nil {
		return nil, fmt.Errorf("reconcile: write a file: %w", err)
	}
	return append(encoded, '\n'), nil
}

// ReadFile reads a file that [File.WriteTo] has written. It returns [ErrDamaged] or
// [ErrVersion] if the file cannot be used.
func ReadFile(r io.Reader) (*File, error) {
	encoded, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reconcile: read a file: %w", err)
	}
	f, err := parseFile(encoded)
	if err != nil {
		return nil, fmt.Errorf("reconcile: read a file: %w", err)
	}
	return f, nil
}

func parseFile(encoded []byte) (*File, error) {
	if len(encoded) > mostBytes {
		return nil, fmt.Errorf("it is larger than %d MB: %w", mostBytes>>20, ErrDamaged)
	}
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(encoded, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if head.Format != fileFormat {
		return nil, fmt.Errorf("format %q is not %q: %w", head.Format, fileFormat, ErrDamaged)
	}
	if head.Version != fileVersion {
		return nil, fmt.Errorf("it has version %d, this library reads version %d: use the same release on both sides: %w",
			head.Version, fileVersion, ErrVersion)
	}
	f := &File{}
	if err := json.Unmarshal(encoded, &f.data); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if f.data.Check != f.data.check() {
		return nil, fmt.Errorf("its check sum is wrong, copy it again: %w", ErrDamaged)
	}
	return f, nil
}

// expect returns an error if f is not of the given kind.
func (f *File) expect(kind string) error {
	switch {
	case f == nil:
		return errors.New("the file is nil")
	case f.data.Kind == kind && f.data.Round > 0 && f.data.Round <= mostRounds:
		return nil
	case f.data.Kind == question:
		return fmt.Errorf("it is %s: the side of the consumers answers it: %w", f.Name(), ErrWrongStep)
	case f.data.Kind == answer:
		return fmt.Errorf("it is %s: the side of the sender reads it: %w", f.Name(), ErrWrongStep)
	}
	return fmt.Errorf("kind %q, round %d: %w", f.data.Kind, f.data.Round, ErrDamaged)
}

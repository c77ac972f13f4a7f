package usercode

// Mark says what an error means for the message whose handler returns it. Package chain reads it,
// so that what only writes to the outbox need not know a consumer's chain.
type Mark int

const (
	// Permanent means that no later attempt can succeed.
	Permanent Mark = iota + 1

	// Undecided means that the message is not the cause.
	Undecided
)

// Marked is an error with a Mark.
type Marked interface {
	error
	Mark() Mark
}

// WithMark returns err with a mark.
func WithMark(mark Mark, err error) error { return &marked{mark, err} }

type marked struct {
	mark Mark
	err  error
}

func (m *marked) Error() string { return m.err.Error() }

func (m *marked) Unwrap() error { return m.err }

func (m *marked) Mark() Mark { return m.mark }

package operate

// Count is the number of messages that one call has counted. A call may count only a part
// of a large table.
type Count struct {
	N int

	// Next is the value for Filter.AfterID to count the rest, or 0 if no other message
	// matches.
	Next int64
}

// GroupPage is a page of failure groups.
type GroupPage struct {
	Groups []Group

	// Partial is true if only the latest messages were read. Groups that contain only
	// older messages are then missing. So if the page is empty, there may still be groups.
	// The counts may be too low, so Group.More is true in each group. DryRun counts all
	// messages.
	Partial bool
}

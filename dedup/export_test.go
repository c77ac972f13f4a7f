package dedup

// SweepQuery is how a batch of the inbox is removed.
func SweepQuery(i *Inbox) string { return i.sql.sweepInbox }

// DigestsQuery is how several messages are compared.
func DigestsQuery(i *Inbox) string { return i.sql.digests }

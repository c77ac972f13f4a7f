package archive

// Query returns the query for a page.
func (l *Log) Query(f Filter, limit int) (query string, args []any) { return l.query(f, limit) }

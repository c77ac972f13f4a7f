package kit

import "context"

// UseTables does what MainWithTables does before it calls Main.
func UseTables() { withTables = true }

// Present takes part in the handover of databases on a server, like another test process.
// The function end does what this process would do at its end.
func Present(ctx context.Context, dsn string) (end func() error, err error) {
	p, err := newPostgres(ctx, dsn)
	if err != nil {
		return nil, err
	}
	return p.close, nil
}

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// days looks at an inbox with the layout by_day: whether its owner can create, empty and
// drop the partitions of days, and whether somebody does.
func (d *doctor) days(ctx context.Context) (found []finding, err error) {
	var owner, schema, database, foreign string
	var create, temporary, swept bool
	err = d.db.QueryRowContext(ctx, `
		WITH inbox AS (SELECT oid, relowner, relnamespace FROM pg_class WHERE oid = to_regclass($1) AND relkind = 'p'),
		     parts AS (SELECT p.relname, p.relowner FROM inbox AS i JOIN pg_inherits AS h ON h.inhparent = i.oid
		               JOIN pg_class AS p ON p.oid = h.inhrelid)
		SELECT quote_ident(pg_get_userbyid(relowner)), relnamespace::regnamespace::text, quote_ident(current_database()),
		       has_schema_privilege(relowner, relnamespace, 'CREATE'),
		       has_database_privilege(relowner, current_database(), 'TEMPORARY'),
		       EXISTS (SELECT FROM parts WHERE relname > $2 || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD') AND relname ~ '_[0-9]{8}$'),
		       COALESCE((SELECT string_agg(quote_ident(relname), ', ' ORDER BY relname) FROM parts
		                 WHERE NOT pg_has_role(inbox.relowner, parts.relowner, 'USAGE')), '')
		FROM inbox`, d.db.table("inbox"), d.db.tables.Prefix+"inbox_").
		Scan(&owner, &schema, &database, &create, &temporary, &swept, &foreign)
	if errors.Is(err, sql.ErrNoRows) { // the layout is plain
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !create {
		found = append(found, finding{
			What: fmt.Sprintf("The owner of the inbox, %s, may not create tables in schema %s.", owner, schema),
			Why:  "The sweep cannot create the partitions of coming days. Ids go to the default partition, and are deleted row by row.",
			Do:   fmt.Sprintf("GRANT USAGE, CREATE ON SCHEMA %s TO %s", schema, owner),
		})
	}
	if !temporary {
		found = append(found, finding{
			What: fmt.Sprintf("The owner of the inbox, %s, may not create temporary tables in database %s.", owner, database),
			Why:  "The sweep keeps the rows that must stay in one while it empties a day. Without it no day is emptied or dropped, and the inbox grows.",
			Do:   fmt.Sprintf("GRANT TEMPORARY ON DATABASE %s TO %s", database, owner),
		})
	}
	if foreign != "" {
		found = append(found, finding{
			What: fmt.Sprintf("Partitions of the inbox do not belong to its owner, %s: %s.", owner, foreign),
			Why:  "The sweep cannot empty or drop them.",
			Do:   fmt.Sprintf("For each of them: ALTER TABLE %s OWNER TO %s", strings.Split(foreign, ", ")[0], owner),
		})
	}
	if !swept {
		found = append(found, finding{
			What: "The inbox by day has no partition for a coming day.",
			Why:  "Nobody sweeps it as its owner: no partition is created or dropped, and the inbox grows.",
			Do: fmt.Sprintf("Run a service with once.Consumer, or once sweep from cron, with the login %s or a member of it. "+
				"The log of the sweep says what failed.", owner),
		})
	}
	return found, nil
}

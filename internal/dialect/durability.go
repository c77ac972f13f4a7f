package dialect

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/schema"
)

// LogDurability logs an error if a crash of the database may lose commits, see
// [schema.Durability]. Call it at the start, as soon as the database can be reached. It
// ignores other errors, because the next query returns them, too.
func (d Dialect) LogDurability(ctx context.Context, db *sql.DB, logger watermill.LoggerAdapter) {
	if err := schema.Durability(ctx, db, d.config); errors.Is(err, schema.ErrNotDurable) {
		logger.Error("The database may lose what was acknowledged", err, nil)
	}
}

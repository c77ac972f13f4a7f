package dialect

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/schema"
)

// LogDurability logs an error if the database may lose commits in a crash, see
// [schema.Durability]. It is for the start, once the database can be reached; a
// database that cannot answer is left to what is asked of it next.
func (d Dialect) LogDurability(ctx context.Context, db *sql.DB, logger watermill.LoggerAdapter) {
	if err := schema.Durability(ctx, db, d.config); errors.Is(err, schema.ErrNotDurable) {
		logger.Error("The database may lose what was acknowledged", err, nil)
	}
}

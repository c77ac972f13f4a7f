package main

import (
	"context"
	"errors"

	"github.com/watermill-once/once/schema"
)

func (d *doctor) durability(ctx context.Context) ([]finding, error) {
	err := schema.Durability(ctx, d.db.DB, d.db.tables)
	if !errors.Is(err, schema.ErrNotDurable) {
		return nil, err
	}
	return []finding{{
		What: err.Error(),
		Why:  "A message is acked after its commit. If a crash of the server loses the commit, the message's effect is lost.",
		Do:   "Change the setting that the text names, for the database or for the logins of the services.",
	}}, nil
}

// parts contains the names of the roles that schema.Roles creates.
var parts = []string{"producer", "forwarder", "consumer", "operator", "watcher"}

func (d *doctor) rights(ctx context.Context) (found []finding, err error) {
	for _, role := range d.roles {
		err := schema.CheckRights(ctx, d.db.DB, d.db.tables, role)
		if errors.Is(err, schema.ErrRights) {
			found = append(found, finding{
				What: err.Error(),
				Why:  "A service with this login fails as soon as it needs the right.",
				Do:   "Run the SQL of once migrate roles as the owner of the tables, and make the login a member of the role " + role + ".",
			})
		} else if err != nil {
			return found, err
		}
	}
	return found, nil
}

// Package recipes stores events together with business rows through libraries that
// write SQL: GORM, sqlx, sqlc, ent and bun. Copy the function that you need: none of
// them uses another one. gorm_events.go collects the events that an object records.
//
// The module is not meant to be imported.
package recipes

// Package upgrade tests an upgrade with a migration, and its rollback. It uses two builds
// of one service: only the newer build contains the migration.
package upgrade

// Package roles tests schema.Roles: each role can do its work, needs every one of its rights, and
// has no other right.
package roles

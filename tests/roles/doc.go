// Package roles has the tests of schema.Roles: each role can do its work, needs
// every single right that it has for it, and has no other.
package roles

// Package databases tests the errors and logs for unsupported databases,
// encodings and drivers.
package databases

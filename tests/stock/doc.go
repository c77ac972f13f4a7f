// Package stock tests the library together with Watermill's own parts, in their earlier
// versions (watermill-sql v3, watermill-amqp v2) and in their later ones (watermill-sql v4,
// watermill-amqp v3).
//
// It is a module of its own, because watermill-sql v4 needs a newer pgx than the library.
package stock

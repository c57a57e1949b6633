// SPDX-License-Identifier: Apache-2.0

#ifndef VIRTLOOM_BULK_H
#define VIRTLOOM_BULK_H

// The stable declarations of virConnectGetAllDomainStats in libvirt.h. Headers of
// libvirt are not needed to build, and the library is loaded with the first connection.

// The types of a parameter (virTypedParameterType).
enum { BULK_INT = 1, BULK_UINT, BULK_LLONG, BULK_ULLONG, BULK_DOUBLE, BULK_BOOLEAN, BULK_STRING };

// BULK_NO_SUPPORT is VIR_ERR_NO_SUPPORT, the error of a library that is too old.
enum { BULK_NO_SUPPORT = 3 };

// bulkParam is virTypedParameter.
typedef struct {
	char field[80];
	int type;
	union {
		int i;
		unsigned int ui;
		long long l;
		unsigned long long ul;
		double d;
		char b;
		char *s;
	} value;
} bulkParam;

// bulkRecord is virDomainStatsRecord.
typedef struct {
	void *dom;
	bulkParam *params;
	int nparams;
} bulkRecord;

// bulkStats queries groups of counters of all domains that flags choose. It returns
// their number; below zero, code and message (to be freed) describe the error.
int bulkStats(void *conn, unsigned int groups, unsigned int flags, bulkRecord ***records, int *code, char **message);

// bulkIdentity tells name and UUID (37 bytes) of a record's domain without asking the
// daemon. It returns NULL if it cannot.
const char *bulkIdentity(bulkRecord *record, char *uuid);

// bulkFree frees records and handles of domains.
void bulkFree(bulkRecord **records);

#endif

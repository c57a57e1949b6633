// SPDX-License-Identifier: Apache-2.0

//go:build cgo

#include "bulk.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static void *symbol(const char *name) {
	void *library = dlopen("libvirt.so.0", RTLD_NOW | RTLD_LOCAL);
	return library ? dlsym(library, name) : NULL;
}

int bulkStats(void *conn, unsigned int groups, unsigned int flags, bulkRecord ***records, int *code, char **message) {
	int (*stats)(void *, unsigned int, bulkRecord ***, unsigned int) = symbol("virConnectGetAllDomainStats");
	int (*lastCode)(void) = symbol("virGetLastErrorCode");
	const char *(*lastMessage)(void) = symbol("virGetLastErrorMessage");
	if (!stats || !lastCode || !lastMessage || !symbol("virDomainStatsRecordListFree")) {
		*message = strdup("libvirt.so.0 lacks virConnectGetAllDomainStats");
		return -1;
	}
	int n = stats(conn, groups, records, flags);
	if (n < 0) { // libvirt keeps the error of each thread: it has to be read here
		*code = lastCode();
		*message = strdup(lastMessage());
	}
	return n;
}

const char *bulkIdentity(bulkRecord *record, char *uuid) {
	const char *(*name)(void *) = symbol("virDomainGetName");
	int (*uuidOf)(void *, char *) = symbol("virDomainGetUUIDString");
	if (!name || !uuidOf || uuidOf(record->dom, uuid) < 0)
		return NULL;
	return name(record->dom);
}

void bulkFree(bulkRecord **records) {
	void (*release)(bulkRecord **) = symbol("virDomainStatsRecordListFree");
	if (release)
		release(records);
}

// SPDX-License-Identifier: Apache-2.0

//go:build cgo

#include "bulk.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// The functions of libvirt in use; loaded is 0 if any of them is missing.
static int (*stats)(void *, unsigned int, bulkRecord ***, unsigned int);
static void (*release)(bulkRecord **);
static const char *(*nameOf)(void *);
static int (*uuidOf)(void *, char *);
static int (*lastCode)(void);
static const char *(*lastMessage)(void);
static int loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
	void *library = dlopen("libvirt.so.0", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return;
	stats = dlsym(library, "virConnectGetAllDomainStats");
	release = dlsym(library, "virDomainStatsRecordListFree");
	nameOf = dlsym(library, "virDomainGetName");
	uuidOf = dlsym(library, "virDomainGetUUIDString");
	lastCode = dlsym(library, "virGetLastErrorCode");
	lastMessage = dlsym(library, "virGetLastErrorMessage");
	loaded = stats && release && nameOf && uuidOf && lastCode && lastMessage;
}

int bulkStats(void *conn, unsigned int groups, unsigned int flags, bulkRecord ***records, int *code, char **message) {
	pthread_once(&once, load);
	if (!loaded) {
		*code = BULK_NO_SUPPORT;
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
	return uuidOf(record->dom, uuid) < 0 ? NULL : nameOf(record->dom);
}

void bulkFree(bulkRecord **records) {
	release(records);
}

/*
 * registry.h - images and where they come from: the front door of the folder for the rest of the server.
 *
 * Front knows the operator's options (a reference may mean a template) and speaks to a child of the role puller
 * (message.h); what the child does is in fetch.h, for daemon/puller.c alone.
 */
#ifndef REGISTRY_REGISTRY_H
#define REGISTRY_REGISTRY_H

#include "registry/message.h"
#include "registry/options.h"

#endif

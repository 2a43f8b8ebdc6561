/*
 * ports.h - guestd's two ports inside every sandbox, as E2B's SDKs have them built in.
 */
#ifndef BASE_PORTS_H
#define BASE_PORTS_H

#define GUESTD_PORT 49983      /* commands and files; upstream's envd */
#define GUESTD_CODE_PORT 49999 /* run_code */

/* PORT_TEXT(GUESTD_PORT) is "49983". */
#define PORT_TEXT(port) PORT_TEXT_OF(port)
#define PORT_TEXT_OF(port) #port

#endif
